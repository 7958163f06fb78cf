"""Indices out of range on the device: never clamped, never counted from the end where PyTorch doesn't; and found when asked for."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

SIZE = 5
BAD = [SIZE, SIZE + 100, -SIZE - 1, -(2**40), -1]  # the last is right for some
FROM_END = {"index", "take", "index_fill", "index_put", "put"}


def xla(*values, **options):
    return torch.tensor(values, device="xla", **options)


def zeros(*sizes):
    return torch.zeros(*sizes, device="xla")


READS = {
    "gather": lambda x, i: x.gather(0, i),
    "take_along_dim": lambda x, i: x.take_along_dim(i),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x[:, None])[:, 0],
    "embedding_bag sum": lambda x, i: F.embedding_bag(i[:, None], x[:, None], mode="sum")[:, 0],
    "embedding_bag mean": lambda x, i: F.embedding_bag(i[:, None], x[:, None], mode="mean")[:, 0],
    "embedding_bag max": lambda x, i: F.embedding_bag(i[:, None], x[:, None], mode="max")[:, 0],
}
WRITES = {
    "scatter": lambda x, i, v: x.scatter(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_copy": lambda x, i, v: x.index_copy(0, i, v),
    "index_reduce": lambda x, i, v: x.index_reduce(0, i, v, "amax"),
    "index_fill": lambda x, i, v: x.index_fill(0, i, 9.0),
    "index_put": lambda x, i, v: x.index_put((i,), v),
    "index_put accumulated": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "put": lambda x, i, v: x.put(i, v),
}
LOSSES = {
    "nll_loss": lambda x, i: F.nll_loss(x.expand(2, SIZE), i, reduction="none"),
    "nll_loss 2d": lambda x, i: F.nll_loss(x[None, :, None, None].expand(2, SIZE, 1, 1), i[:, None, None], reduction="none").flatten(),
    "cross_entropy": lambda x, i: F.cross_entropy(x.expand(2, SIZE), i, reduction="none"),
    "cross_entropy smoothed": lambda x, i: F.cross_entropy(x.expand(2, SIZE), i, reduction="none", label_smoothing=0.1),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x.expand(2, SIZE), i, reduction="none"),
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(x.expand(2, SIZE), _listed(i), reduction="none"),
}


def _listed(i):
    return torch.cat([i[:, None], torch.full((2, SIZE - 1), -1, device=i.device)], 1)


def bad_for(name):
    return [bad for bad in BAD if bad != -1 or not (FROM_END | {"multilabel_margin_loss"}) & {name.split()[0]}]


CASES = {kind: [(name, bad) for name in table for bad in bad_for(name)] for kind, table in (("r", READS), ("w", WRITES), ("l", LOSSES))}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", [*READS, *WRITES, *LOSSES])
def test_the_cpu_refuses_what_is_called_bad_here(name):
    """What the other tests hold for out of range is so for PyTorch."""
    x, values = torch.arange(1.0, 6.0), torch.ones(2)
    for bad in bad_for(name):
        index = torch.tensor([1, bad])
        with pytest.raises((IndexError, RuntimeError)):
            WRITES[name](x, index, values) if name in WRITES else (READS | LOSSES)[name](x, index)


@pytest.mark.parametrize(("name", "bad"), CASES["r"])
def test_reading_gives_nan_and_no_gradient(name, bad):
    x = torch.arange(1.0, 6.0, device="xla", requires_grad=True)
    read = READS[name](x, xla(1, bad))
    read.sum().backward()
    assert read[0].item() == 2 and read[1].isnan().item()
    assert x.grad.tolist() == [0, 1, 0, 0, 0]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(("name", "bad"), CASES["w"])
def test_writing_does_nothing(name, bad):
    written = WRITES[name](zeros(SIZE), xla(1, bad), xla(9.0, 9.0))
    assert written.tolist() == [0, 9, 0, 0, 0]


@pytest.mark.parametrize(("name", "bad"), CASES["l"])
def test_a_loss_of_a_class_that_is_not_there_is_nan(name, bad):
    x = torch.arange(1.0, 6.0, device="xla", requires_grad=True)
    losses = LOSSES[name](x, xla(1, bad))
    losses.sum().backward()
    assert losses.isnan().tolist() == [False, True]
    assert x.grad.isnan().any().item()


def test_integers_have_no_nan():
    assert torch.arange(3, device="xla").gather(0, xla(1, -1)).tolist() == [1, torch.iinfo(torch.int64).min]
    assert F.one_hot(xla(1, 7), 3).tolist() == [[0, 1, 0], [0, 0, 0]]


CHECKED = """
import torch, surestep
import torch.nn.functional as F

def xla(*values):
    return torch.tensor(values, device="xla")

x, good = torch.arange(1.0, 6.0, device="xla", requires_grad=True), xla(1, 2)

def found(line):
    for boundary in (surestep.sync, lambda: x.sum().item()):
        try:
            line()
            boundary()
        except IndexError as error:
            what, _, rest = str(error).partition(" (")
            print(what, "|", line.__code__.co_firstlineno == int(rest.partition("script.py:")[2].partition(")")[0]))
        else:
            print("nothing")

found(lambda: x.gather(0, xla(1, 7)))
found(lambda: x.gather(0, xla(1, -1)))
found(lambda: x.detach().clone().scatter_(0, xla(5), 1.0))
found(lambda: x.scatter_add(0, xla(1, 5), x))
found(lambda: x.index_select(0, xla(1, 6)))
found(lambda: x[xla(1, -6)])
found(lambda: torch.zeros(3, 5, device="xla")[:, None, xla(1, 5)])
found(lambda: x.detach().clone().index_put_((xla(8),), x[0].detach()))
found(lambda: x.take(xla(-6)))
found(lambda: F.embedding(xla(5), x[:, None]))
found(lambda: F.embedding_bag(xla(5)[None], x[:, None]))
found(lambda: F.cross_entropy(x[None], xla(5)))
found(lambda: F.nll_loss(torch.zeros(1, 3, 2, 2, device="xla"), torch.full((1, 2, 2), 3, device="xla")))
found(lambda: F.multi_margin_loss(x[None], xla(-1)))
found(lambda: F.one_hot(xla(1, 5), 5))
found(lambda: F.max_unpool1d(x.detach()[None, :2], xla(0, 9)[None], 2))

found(lambda: (x.gather(0, good), x[xla(-5, 4)], x[x > 2], F.cross_entropy(x[None], xla(-100))))
found(lambda: F.embedding(good, x[:, None]).sum().backward())
with surestep.step():
    x.gather(0, good)
print(surestep.metrics().fallbacks.total())
"""


def test_when_asked_it_is_an_error_with_the_users_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CHECKED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "SURESTEP_CHECK_BOUNDS": "1"})
    assert done.returncode == 0, done.stderr
    *lines, fallbacks = done.stdout.splitlines()
    operations = [
        "gather.default: index 7 is out of range; it must be from 0 to 4",
        "gather.default: index -1 is out of range; it must be from 0 to 4",
        "scatter_.value: index 5 is out of range; it must be from 0 to 4",
        "scatter_add.default: index 5 is out of range; it must be from 0 to 4",
        "index_select.default: index 6 is out of range; it must be from 0 to 4",
        "index.Tensor: index -6 is out of range; it must be from -5 to 4",
        "index.Tensor: index 5 is out of range; it must be from -5 to 4",
        "index_put_.default: index 8 is out of range; it must be from -5 to 4",
        "take.default: index -6 is out of range; it must be from -5 to 4",
        "embedding.default: index 5 is out of range; it must be from 0 to 4",
        "_embedding_bag.default: index 5 is out of range; it must be from 0 to 4",
        "nll_loss_forward.default: index 5 is out of range; it must be from 0 to 4",
        "nll_loss2d_forward.default: index 3 is out of range; it must be from 0 to 2",
        "multi_margin_loss.default: index -1 is out of range; it must be from 0 to 4",
        "one_hot.default: index 5 is out of range; it must be from 0 to 4",
        "max_unpool2d.default: index 9 is out of range; it must be from 0 to 3",
    ]
    assert lines == [f"aten.{each} | True" for each in operations for _ in range(2)] + ["nothing"] * 4
    assert fallbacks == "2"  # x[x > 2], whose shape hangs on values


def test_when_not_asked_nothing_of_it_is_there():
    from surestep.tensor import bounds, devices

    zeros(1)
    assert not bounds.ENABLED and type(devices.recorder(None)) is bounds.Recorder
