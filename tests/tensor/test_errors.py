"""The user's mistakes: PyTorch's own words, at the user's line, before anything is compiled, and nothing is lost."""

import traceback

import pytest
import torch

import surestep

MISTAKES = {
    "shapes": (
        lambda x: x + torch.ones(3, device="xla"),
        RuntimeError,
        r"The size of tensor a \(2\) must match the size of tensor b \(3\)",
    ),
    "devices": (
        lambda x: x + torch.ones(2),
        RuntimeError,
        "Expected all tensors to be on the same device, but found at least two devices, xla:0 and cpu",
    ),
    "product": (lambda x: torch.ones(2, 3, device="xla") @ x, RuntimeError, "size mismatch|must match"),
    "view": (lambda x: x.view(3), RuntimeError, "shape '.3.' is invalid for input of size 2"),
    "in-place dtype": (lambda x: torch.ones(2, device="xla", dtype=torch.int64).mul_(1.5), RuntimeError, "result type Float can't be cast"),
    "index dtype": (lambda x: torch.embedding(torch.ones(2, 2, device="xla"), x), RuntimeError, "scalar types: Long, Int"),
    "reduction": (lambda x: x.sum(5), IndexError, "Dimension out of range"),
    "as_strided": (lambda x: x.as_strided((9,), (1,)), RuntimeError, "out of bounds for storage"),
    "no such device": (lambda x: x.to("xla:7"), RuntimeError, "invalid device ordinal"),
    "dtype without a kernel": (lambda x: torch.bitwise_and(x, x), RuntimeError, "not implemented"),
    "loss": (lambda x: torch.nn.functional.mse_loss(x, torch.ones(3, device="xla")), RuntimeError, "must match"),
    "writing to the other device": (lambda x: torch.ones(()).add_(x.sum()), RuntimeError, "argument self is on cpu"),
    "autograd": (lambda x: x.requires_grad_().add_(1), RuntimeError, "leaf Variable that requires grad"),
}


MIXED = {
    "operand": (lambda x, c: torch.add(c, x), "aten.add.Tensor: argument self"),
    "product": (lambda x, c: torch.addmm(x, x, c), "aten.addmm.default: argument mat2"),
    "in a list": (lambda x, c: torch.cat([x, c]), r"aten.cat.default: argument tensors\[1\]"),
    "in place": (lambda x, c: c.add_(x), "aten.add_.Tensor: argument self"),
    "out": (lambda x, c: torch.add(x, x, out=c), "aten.add.out: argument out"),
    "values": (lambda x, c: x.index_put_((torch.tensor([0]),), c[0]), "aten.index_put_.default: argument values"),
    "on the host": (lambda x, c: torch.histogram(x, c[0]), "aten.histogram.bins_tensor: argument bins"),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_two_devices_are_told_by_operation_and_argument(name):
    mistake, place = MIXED[name]
    with pytest.raises(
        RuntimeError, match=rf"^Expected all tensors to be on the same device, .* xla:0 and cpu! {place} is on cpu, .*xla:0'"
    ):
        mistake(torch.ones(3, 3, device="xla"), torch.ones(3, 3))


@pytest.mark.filterwarnings("ignore:surestep. aten._p")
def test_what_pytorch_takes_from_the_cpu_is_taken():
    x = torch.ones(3, 3, device="xla")
    assert (x + torch.tensor(1.0)).sum().item() == 18
    packed = torch.nn.utils.rnn.pack_padded_sequence(x[..., None], torch.tensor([3, 2, 1]))
    assert torch.nn.utils.rnn.pad_packed_sequence(packed)[0].sum().item() == 6


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_mistakes_are_pytorchs_errors_at_the_users_line(name, metrics):
    mistake, kind, text = MISTAKES[name]
    x = torch.arange(2.0, device="xla")
    kept = x * 3  # pending when the mistake is made
    with pytest.raises(kind, match=text) as caught:
        mistake(x)
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(caught.value.__traceback__)[1:])
    assert metrics().compile.count == 0 and metrics().boundaries.total() == 0
    assert kept.tolist() == [0, 3] and x.detach().tolist() == [0, 1]


def test_an_interrupt_while_a_step_is_recorded_leaves_every_tensor_right():
    weight = torch.zeros(3, device="xla")
    with pytest.raises(KeyboardInterrupt), surestep.step():
        weight.add_(1)
        view = weight[1:]
        view.mul_(5)
        raise KeyboardInterrupt
    assert weight.tolist() == [1, 5, 5]


def test_an_interrupt_while_compiling_leaves_the_trace_to_be_run_again(monkeypatch):
    from surestep.execute import program

    weight = torch.zeros(3, device="xla").add_(1)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_matching", interrupted)
    with pytest.raises(KeyboardInterrupt):
        surestep.sync()
    monkeypatch.undo()
    weight.mul_(3)
    assert weight.tolist() == [3, 3, 3]


def test_a_program_that_fails_at_its_start_names_itself_in_what_it_lost(monkeypatch):
    from surestep.execute.program import Program

    weight, kept = torch.ones(3).to("xla"), torch.ones(3).to("xla")

    def failing(self, leaves, floats, ints):
        for position in self.donated:
            leaves[position].delete()
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    weight.add_(kept)
    monkeypatch.setattr(Program, "__call__", failing)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        surestep.sync()
    monkeypatch.undo()
    assert kept.tolist() == [1, 1, 1]
    with pytest.raises(
        RuntimeError, match=r"lost: its memory was given to program_\d+ .*test_errors.py.* which failed: RESOURCE_EXHAUSTED"
    ):
        weight.tolist()
    weight.copy_(torch.zeros(3))
    assert (weight + 1).tolist() == [1, 1, 1]


def test_a_program_that_cannot_be_compiled_is_told_once_and_what_comes_later_runs(monkeypatch):
    from surestep.execute import program

    def refuses(*_):
        raise NotImplementedError("unsupported dtype")

    kept = torch.ones(3).to("xla")
    result = kept * 7.25
    monkeypatch.setattr(program, "build", refuses)
    with pytest.raises(NotImplementedError, match="unsupported dtype"):
        result.tolist()
    monkeypatch.undo()
    assert (kept + 1).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match=r"lost: it couldn't be compiled \(.*test_errors.py:\d+\): unsupported dtype"):
        result.tolist()
    result.copy_(torch.ones(3))
    assert (result * 7.25).tolist() == [7.25] * 3


def test_quantized_and_sparse_results_are_refused():
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        torch.ones(2, 2, device="xla").to_sparse()
