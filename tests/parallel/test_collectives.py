"""Each collective against what NumPy makes of all ranks' values, in two processes."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel import jobs
from parallel.processes import ranks

F32, I64, BF16, BOOL, U8, C64 = torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.uint8, torch.complex64
KINDS = {"sum": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}


def model(name, values, rank, options):
    """What a rank should have, from all ranks' values as NumPy arrays."""
    groups = options.get("groups") or [list(range(len(values)))]
    group = next(group for group in groups if rank in group)
    mine, place = [values[other] for other in group], group.index(rank)
    if name in ("all_reduce", "reduce_scatter"):
        total = KINDS[options["kind"]].reduce(mine).astype(mine[0].dtype)
        total = (total * options.get("scale", 1.0)).astype(total.dtype)
        return total if name == "all_reduce" else np.split(total, len(group), options["dim"])[place]
    if name == "all_gather":
        return np.concatenate(mine, options["dim"])
    if name == "all_to_all":
        parts = [np.split(value, len(group), options["split_dimension"])[place] for value in mine]
        return np.concatenate(parts, options["concat_dimension"])
    if name == "exchange":
        sizes = options["sizes"]
        return np.concatenate([value[sum(row[:rank]) :][: row[rank]] for value, row in zip(values, sizes, strict=True)])
    if name == "permute":
        return next((values[source] for source, target in options["pairs"] if target == rank), np.zeros_like(values[rank]))
    return values[options["root"]]


def check(cases, directory, count=2):
    results = ranks(jobs.collectives, cases, count=count, directory=directory)
    for seed, (name, shape, dtype, options) in enumerate(cases):
        tensors = [jobs.own(shape, dtype, rank, seed) for rank in range(count)]
        values = [(t.float() if t.dtype is BF16 else t).numpy() for t in tensors]
        for rank in range(count):
            found = results[rank][seed]
            assert found.dtype is dtype
            expected = torch.tensor(model(name, values, rank, options))
            torch.testing.assert_close(found, expected.to(dtype), msg=lambda text, case=(name, shape, dtype, options): f"{case}: {text}")


def test_each(tmp_path):
    groups = [[0], [1]]
    cases = [
        *(("all_reduce", (3, 2), F32, {"kind": kind}) for kind in ("sum", "mul", "min", "max")),
        *(("all_reduce", (5,), dtype, {"kind": kind}) for kind in KINDS for dtype in (I64, U8, BOOL)),
        *(("all_reduce", (4,), dtype, {"kind": "sum"}) for dtype in (BF16, C64, torch.float64, torch.float16)),
        ("all_reduce", (4,), F32, {"kind": "sum", "scale": 0.25}),
        ("all_reduce", (4,), F32, {"kind": "sum", "groups": groups}),
        ("all_reduce", (4,), F32, {"kind": "max", "groups": [[1, 0]]}),
        ("all_reduce", (), F32, {"kind": "sum"}),
        ("all_reduce", (0, 3), F32, {"kind": "sum"}),
        *(("all_gather", (2, 3), dtype, {"dim": dim}) for dim in (0, 1, -1) for dtype in (F32, BOOL)),
        ("all_gather", (2, 3), F32, {"dim": 0, "groups": [[1, 0]]}),
        *(("reduce_scatter", (4, 2), F32, {"kind": kind, "dim": dim, "count": 2}) for kind in ("sum", "max", "mul") for dim in (0, 1)),
        ("reduce_scatter", (4, 2), F32, {"kind": "sum", "dim": 0, "count": 2, "scale": 0.5}),
        ("reduce_scatter", (4, 2), I64, {"kind": "sum", "dim": 0, "count": 2, "groups": [[1, 0]]}),
        ("all_to_all", (4, 2), F32, {"split_dimension": 0, "concat_dimension": 1, "split_count": 2}),
        ("all_to_all", (4, 2), I64, {"split_dimension": 1, "concat_dimension": 1, "split_count": 2}),
        ("permute", (3,), F32, {"pairs": [[0, 1], [1, 0]]}),
        ("permute", (3,), F32, {"pairs": [[1, 0]]}),
        *(("broadcast", (3,), dtype, {"root": root}) for root in (0, 1) for dtype in (F32, BF16, BOOL, C64, I64)),
    ]
    check(cases, tmp_path)


DTYPES = st.sampled_from([F32, I64, BF16, BOOL])
SHAPES = st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3).map(tuple)


@st.composite
def case(draw):
    shape, dtype = draw(SHAPES), draw(DTYPES)
    dims = st.integers(0, len(shape) - 1)
    groups = draw(st.sampled_from([None, [[0, 1]], [[1, 0]]]))
    name = draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "exchange", "permute", "broadcast"]))
    kind = draw(st.sampled_from([kind for kind in KINDS if dtype in (I64, BOOL) or kind not in ("and", "or")]))
    size = st.integers(0, shape[0] // 2)
    options = {
        "all_reduce": {"kind": kind, "groups": groups},
        "all_gather": {"dim": draw(dims), "groups": groups},
        "reduce_scatter": {"kind": kind, "dim": draw(dims), "count": 2, "groups": groups},
        "all_to_all": {"split_dimension": draw(dims), "concat_dimension": draw(dims), "split_count": 2, "groups": groups},
        "exchange": {"sizes": draw(st.lists(st.tuples(size, size), min_size=2, max_size=2))},
        "permute": {"pairs": draw(st.sampled_from([[], [[0, 1]], [[1, 0], [0, 1]]]))},
        "broadcast": {"root": draw(st.integers(0, 1))},
    }[name]
    return name, shape, dtype, options


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(case(), min_size=25, max_size=40))
def test_random_ones(tmp_path_factory, cases):
    check(cases, tmp_path_factory.mktemp("random"))


def test_groups_of_four(tmp_path):
    halves = [[0, 2], [1, 3]]
    cases = [
        ("all_reduce", (4,), F32, {"kind": "sum", "groups": halves}),
        ("all_gather", (2,), F32, {"dim": 0, "groups": halves}),
        ("reduce_scatter", (4,), F32, {"kind": "min", "dim": 0, "count": 2, "groups": [[3, 0], [1, 2]]}),
        ("all_to_all", (4,), I64, {"split_dimension": 0, "concat_dimension": 0, "split_count": 4}),
        ("permute", (2,), F32, {"pairs": [[0, 1], [1, 2], [2, 3], [3, 0]]}),
        ("exchange", (8, 2), F32, {"sizes": [[1, 0, 2, 3], [0, 0, 0, 0], [2, 2, 2, 2], [0, 5, 1, 1]]}),
    ]
    check(cases, tmp_path, count=4)


def test_lists_and_outputs(tmp_path):
    for rank, (a, b, view, output, *many) in enumerate(ranks(jobs.lists_and_outputs, directory=tmp_path)):
        assert a == [1.5] * 3 and b == [[15.0] * 2] * 2
        assert view == [0, 3, 3, 0], rank
        assert output == [1.5] * 6
        assert many == [[1.0] * size for size in (1, 5, 0, 7) for _ in range(2)]


def test_constants_differ(tmp_path):
    for rank, found in enumerate(ranks(jobs.constants, directory=tmp_path)):
        reduced, gathered, part, exchanged, permuted, sent = found
        assert reduced == [1.0] * 4 and part == [1.0] * 2 and sent == [1.0] * 2
        assert gathered == [0.0] * 4 + [1.0] * 4 and exchanged == [0.0] * 2 + [1.0] * 2
        assert permuted == [1.0 - rank] * 4


def test_gradients(tmp_path):
    """Each rank's own part, as in torch_xla."""
    results = ranks(jobs.gradients, directory=tmp_path)
    check_synced(*(found[-6:] for found in results))
    for rank, found in enumerate(results):
        total, product, least, most, gathered, multiplied, *_ = found
        assert total == [0.5, 0.5]
        assert product == [0.5 * (2 - rank), 0.5 * (1 + rank)]
        assert least == [0.5 * (rank == 0), 0.5 * (rank == 1)] and most == [0.5 * (rank == 1), 0.5 * (rank == 0)]
        assert gathered == [2.0 + rank]
        whole = np.array([[1.0, 2.0], [1.0, 2.0]]) @ (np.arange(4.0).reshape(2, 2) * (rank + 1))
        assert multiplied == whole.tolist()


def check_synced(first, second):
    """SyncBatchNorm on two processes against BatchNorm on the whole batch; its variance is the biased one."""
    x = jobs.batch_of_all().requires_grad_()
    norm = torch.nn.BatchNorm1d(3, momentum=0.3)
    y = norm(x)
    (y.square() * x).sum().backward()
    assert_close = torch.testing.assert_close
    assert_close(torch.cat([first[0], second[0]]), y.detach())
    assert_close(torch.cat([first[1], second[1]]), x.grad, rtol=1e-4, atol=1e-5)
    assert_close(first[2] + second[2], norm.weight.grad, rtol=1e-4, atol=1e-5)
    running = torch.stack([norm.running_mean, 0.7 + 0.3 * x.detach().var((0, 2), unbiased=False)])
    for found in (first, second):
        assert_close(torch.stack(found[3:5]), running)
    shown = (x.detach() - running[0, :, None]) / (running[1, :, None] + 1e-5).sqrt()
    assert_close(torch.cat([first[5], second[5]]), shown)


def test_meetings(tmp_path, capfd):
    for rank, found in enumerate(ranks(jobs.meetings, tmp_path, directory=tmp_path)):
        assert found["rendezvous"] == [b"from 0", b"from 1"]
        assert found["mesh_reduce"] == 3.0
        assert found["on_ordinals"] == ([1.0] if rank == 1 else None)
        assert found["serial"] == rank and found["saved"] == [0.0, 0.0]
        torch.manual_seed(0)
        assert found["parameters"][3:] == [0.0] * 3
    first, second = ranks(jobs.meetings, tmp_path, directory=tmp_path)
    assert first["parameters"] == second["parameters"]
    assert capfd.readouterr().out.count("only the master's line") == 2


@pytest.mark.parametrize("count", [2])
def test_places(tmp_path, count):
    for rank, found in enumerate(ranks(jobs.places, count=count, directory=tmp_path)):
        assert found["xr"] == (rank, rank, count, rank, count, count)
        assert found["xm"] == (rank, rank, count, rank == 0, rank == 0)
        assert found["devices"] == ("xla:0", ["xla:0"], count, 1)
