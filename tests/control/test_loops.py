"""Loops and branches that the device decides, by torch_xla's names and by PyTorch's own."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

import surestep
from both import same
from surestep.control.choice import cond
from surestep.control.loops import fori_loop, while_loop
from surestep.torch_xla.experimental.fori_loop import _xla_while_loop_wrapper

X = torch.arange(6.0, dtype=torch.float64).reshape(3, 2) / 5


def number(value, **options):
    return torch.tensor(value, device="xla", **options)


@pytest.mark.parametrize("loop", [while_loop, torch_while_loop])
def test_while_loop(loop, metrics):
    net = nn.Linear(2, 2).double().to("xla")
    with torch.no_grad():
        x = X.to("xla")
        expected = x
        for _ in range(4):
            expected = net(expected)
        count = number(4)
        surestep.sync()
        surestep.clear_metrics()
        left, found = loop(lambda n, y: n > 0, lambda n, y: (n - 1, net(y)), (count, x))
        surestep.sync()
        assert metrics().run.count == 1 and left.item() == 0 and count.item() == 4
        torch.testing.assert_close(found, expected)
        assert loop(lambda n, y: n > 9, lambda n, y: (n - 1, y), (count, x))[0].item() == 4  # no round at all


def test_the_number_of_rounds_is_no_part_of_the_program(metrics):
    for rounds in (1, 3, 7):
        _, x = while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (number(rounds), number(1.0)))
        assert x.item() == 2**rounds
    assert metrics().compile.count <= 2


def test_random_numbers_in_a_while_loop():
    def body(n, kept):
        row = torch.nn.functional.pad(torch.rand(1, 2, device="xla"), (0, 0, 0, 2))
        return n + 1, kept.roll(1, 0) * torch.tensor([[0.0], [1.0], [1.0]], device="xla") + row

    def draws(seed):
        surestep.manual_seed(seed)
        _, kept = while_loop(lambda n, kept: n < 3, body, (number(0), torch.zeros(3, 2, device="xla")))
        return kept, torch.rand(2, device="xla")

    kept, after = draws(1)
    assert torch.cat([kept, after[None]]).unique().numel() == 8
    assert torch.equal(draws(1)[0], kept) and not torch.equal(draws(2)[0], kept)


def test_fori_loop():
    assert [t.item() for t in fori_loop(number([2], dtype=torch.int32), number([52], dtype=torch.int32), lambda a: a + 1, number([1]))] == [
        0,
        51,
    ]
    left, x, y = fori_loop(0, 3, lambda x, y: (y, x + y), number(0), number(1))
    assert (left.item(), x.item(), y.item()) == (0, 2, 3)
    assert fori_loop(3, 1, lambda x: x + 1, number(0))[1].item() == 0


def test_the_wrapper_of_scripts():
    found = _xla_while_loop_wrapper(
        lambda n, x, w: n > 0, lambda n, x, w: (n - 1, x * w), (number(2), number(3)), (number(5),), fake_tensor=True
    )
    assert [each.item() for each in found] == [0, 75]


@pytest.mark.parametrize("choose", [cond, torch.cond])
def test_cond(choose, metrics):
    w = number(3.0)
    for sign in (1.0, -1.0):
        x = torch.ones(2, device="xla") * sign
        found = choose(x.sum() > 0, lambda t: {"a": t * w, "b": (t + 1,)}, lambda t: {"a": t - 1, "b": (torch.rand_like(t),)}, (x,))
        assert found["a"].tolist() == ([3, 3] if sign > 0 else [-2, -2])
    assert cond(True, lambda: 1, lambda: 2) == 1


def branched(choose):
    """Gradients of what both branches, or one of them, read."""

    def use(x, w, v, sign):
        hidden = torch.tanh(w)

        def one(t, u):
            return {"a": (t * hidden).sum() * w.sum(), "b": u.detach(), "c": t}

        def other(t, u):
            return {"a": (u * v).exp().sum(), "b": u * 2, "c": u * hidden}

        found = choose((x.sum() * sign) > 0, one, other, (x, x * 3))
        loss = found["a"] + (found["b"] ** 2).sum() + (found["c"] ** 3).sum()
        return *(each.detach() for each in found.values()), *torch.autograd.grad(loss, [x, w, v], allow_unused=True, materialize_grads=True)

    return use


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("ours", [cond, torch.cond])
def test_gradients_of_cond(ours, sign):
    def choose(pred, one, other, operands):
        if operands[0].device.type == "cpu":
            return (one if pred else other)(*operands)
        return ours(pred, one, other, operands)

    x, w, v = (
        torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).abs().requires_grad_() for seed in range(3)
    )
    same(branched(choose), x, w, v, torch.tensor(sign, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_random_numbers_in_a_branch_are_the_same_in_its_gradient():
    x = torch.ones(16, device="xla", requires_grad=True)
    for sign in (1.0, -1.0):
        result = cond((x * sign).sum() > 0, lambda t: torch.dropout(t, 0.5, True), lambda t: torch.dropout(t, 0.2, True) * 3, (x,))
        (grad,) = torch.autograd.grad(result.sum(), x)
        assert torch.equal(grad, result.detach()) and 0 < (grad == 0).sum() < 16


def test_scan_map_and_associative_scan_of_pytorch():
    def steps(x, how):
        x = x.clone().requires_grad_()
        carry, ys = how(lambda c, y: (c + y.sin(), c * y), torch.zeros(2, dtype=x.dtype, device=x.device), x)
        return carry.detach(), ys.detach(), *torch.autograd.grad(carry.sum() + ys.sum(), x)

    def looped(fn, init, xs):
        from unrolled import scanned

        return scanned(fn, init, xs) if xs.device.type == "cpu" else torch_scan(fn, init, xs)

    same(lambda x: steps(x, looped), X, rtol=1e-9, atol=1e-9)

    def squares(x):
        x = x.clone().requires_grad_()
        found = (
            torch.stack([(row * x[0]).sin() for row in x])
            if x.device.type == "cpu"
            else mapped(lambda row, first: (row * first).sin(), x, x[0])
        )
        return found.detach(), *torch.autograd.grad(found.sum(), x)

    same(squares, X, rtol=1e-9, atol=1e-9)

    def products(x):
        return x.cumprod(0) if x.device.type == "cpu" else associative_scan(torch.mul, x, 0, combine_mode="generic")

    same(products, X + 1, rtol=1e-9, atol=1e-9)


def test_pytorchs_own_on_the_cpu_are_as_they_were():
    assert torch.cond(True, lambda x: x + 1, lambda x: x - 1, (torch.ones(1),)).item() == 2


def test_errors():
    x, w = torch.ones(2, device="xla"), torch.ones(2, device="xla", requires_grad=True)
    never = number(False)
    for call, kind, message in (
        (lambda: while_loop(lambda x: x, lambda x: (x,), (x,)), ValueError, r"one truth value.*a tensor on xla:0 \(float32\[2\]\)"),
        (lambda: while_loop(lambda x: never, lambda x: (x[0],), (x,)), ValueError, "keep its shapes"),
        (lambda: while_loop(lambda x: never, lambda x: (x, x), (x,)), ValueError, "keep its structure"),
        (lambda: while_loop(lambda x: never, lambda x: (x * w,), (x,)), RuntimeError, "wants a gradient"),
        (lambda: while_loop(lambda x: bool(x.sum() > 1), lambda x: (x,), (x,)), RuntimeError, "a value was read"),
        (lambda: while_loop(lambda x: never, lambda x: (x,), (3,)), TypeError, r"carried_inputs\[0\] is a int"),
        (lambda: cond(never, lambda x: x, lambda x: x[0], (x,)), ValueError, "must be alike"),
        (lambda: cond(never, lambda x: x, lambda x: (x,), (x,)), ValueError, "must be alike"),
        (lambda: cond(never, lambda x: x.add_(1), lambda x: x, (x,)), RuntimeError, "writes in place to its operands"),
    ):
        with pytest.raises(kind, match=message):
            call()
