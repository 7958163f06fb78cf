"""`F.linear` is one operation here: the same values, gradients and errors as PyTorch's on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import func
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

SHAPES = [
    ((2, 4), (3, 4), (3,)),
    ((4,), (3, 4), (3,)),
    ((2, 5, 4), (3, 4), (3,)),
    ((2, 5, 4), (3, 4), None),
    ((2, 5, 4), (3, 4), ()),
    ((2, 4), (4,), None),
    ((4,), (4,), None),
    ((0, 4), (3, 4), (3,)),
    ((2, 4), (3, 4), (1,)),
]


def results(device: str, shapes: tuple, dtype: torch.dtype, needs: tuple[bool, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    operands = [
        None if shape is None else torch.randn(shape, dtype=dtype).to(device).requires_grad_(grad)
        for shape, grad in zip(shapes, needs, strict=True)
    ]
    y = linear(*operands)
    weights = torch.arange(y.numel(), device=device).reshape(y.shape)
    (y * weights).sum().abs().backward()
    return [t.cpu() for t in (y.detach(), *(o.grad for o in operands if o is not None and o.grad is not None))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("needs", [(True, True, True), (False, True, True), (True, False, True), (True, True, False)], ids=str)
def test_values_and_gradients(shapes, dtype, needs):
    for expected, found in zip(results("cpu", shapes, dtype, needs), results("xla", shapes, dtype, needs), strict=True):
        torch.testing.assert_close(found, expected)


class Seen(TorchDispatchMode):
    """The operations that reach the device."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))


def test_one_operation_each_way():
    x, w, b = (torch.randn(s, device="xla", requires_grad=True) for s in ((2, 4), (3, 4), (3,)))
    ones = torch.ones(2, 3, device="xla")
    with Seen() as seen:
        linear(x, w, b).backward(ones)
    assert [name for name in seen.names if "detach" not in name] == ["aten.linear.default", "aten.linear_backward.default"]


def test_flops_are_counted_as_on_the_cpu():
    counts = []
    for device in ("cpu", "xla"):
        x, w, b = (torch.ones(s, device=device, requires_grad=True) for s in ((2, 5, 4), (3, 4), (3,)))
        with FlopCounterMode(display=False) as counter:
            linear(x, w, b).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 10 * 4 * 3


def test_higher_order():
    torch.manual_seed(0)
    operands = [torch.randn(s, dtype=torch.float64) for s in ((2, 4), (3, 4), (3,))]

    def f(x, w, b):
        return linear(x, w, b).sin().sum()

    for transform in (
        lambda x, w, b: func.jvp(f, (x, w, b), (x, w, b))[1],
        lambda x, w, b: func.hessian(f, argnums=1)(x, w, b),
        lambda x, w, b: func.vmap(lambda row: linear(row, w, b))(x),
        lambda x, w, b: func.grad(lambda w: func.grad(f, argnums=1)(x, w, b).square().sum())(w),
    ):
        torch.testing.assert_close(transform(*(o.to("xla") for o in operands)).cpu(), transform(*operands))


@pytest.mark.parametrize("shapes", [((2, 4), (3, 5), (3,)), ((2, 4), (3, 4), (2,)), ((2, 4), (4,), ())], ids=str)
def test_errors_are_pytorchs(shapes):
    with pytest.raises(RuntimeError) as expected:
        linear(*(torch.ones(s) for s in shapes))
    with pytest.raises(RuntimeError) as found:
        linear(*(torch.ones(s, device="xla") for s in shapes))
    assert str(found.value) == str(expected.value)


def test_a_bias_of_two_dimensions():
    x, w, b = (torch.ones(s, device="xla") for s in ((2, 4), (3, 4), (2, 3)))
    assert linear(x, w, b).tolist() == [[5.0] * 3] * 2
    with pytest.raises(RuntimeError, match=r"a bias of shape \[2, 3\] can't be trained"):
        linear(x, w, b.requires_grad_())
