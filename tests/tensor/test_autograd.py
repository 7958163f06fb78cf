"""Autograd: double backward, views written in place, custom functions, functional transforms."""

import pytest
import torch

from both import same


def test_double_backward():
    def second(x):
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        g.square().sum().backward()
        return g, x.grad

    same(second, torch.arange(3.0, requires_grad=True))


def test_writing_in_place_through_a_view_of_a_graph():
    def through(x):
        y = x * 2
        y[1:].mul_(x[:2])
        y.t().add_(1)
        y.sum().backward()
        return y, x.grad

    same(through, torch.arange(9.0).reshape(3, 3).requires_grad_())


def test_a_saved_value_that_was_overwritten_is_pytorchs_error():
    x = torch.ones(3, device="xla", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_custom_functions_hooks_and_anomaly_mode():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    def custom(x):
        seen = []
        y = Cube.apply(x)
        y.register_hook(lambda g: seen.append(g) or g * 2)
        y.sum().backward()
        return x.grad, seen

    same(custom, torch.arange(3.0, requires_grad=True))


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.grad(lambda t: (t**2).sum())(x),
        lambda x: torch.func.vmap(lambda t: t * 2 + t.sum())(x),
        lambda x: torch.func.jacrev(lambda t: t**3)(x[0]),
        lambda x: torch.func.jacfwd(lambda t: t**3)(x[0]),
        lambda x: torch.func.hessian(lambda t: (t**3).sum())(x[0]),
        lambda x: torch.func.jvp(lambda t: t.sin(), (x,), (torch.ones_like(x),)),
        lambda x: torch.func.vmap(torch.func.grad(lambda t: t.prod()))(x),
        lambda x: torch.autograd.functional.hessian(lambda t: (t**3).sum(), x[0]),
    ],
)
def test_functional_transforms(transform):
    same(transform, torch.arange(1.0, 7.0).reshape(2, 3))


def test_gradients_accumulate_and_are_set_to_none():
    def accumulate(x):
        for _ in range(3):
            (x * 2).sum().backward()
        first = x.grad.clone()
        x.grad.zero_()
        (x * 3).sum().backward()
        return first, x.grad

    same(accumulate, torch.ones(3, requires_grad=True))


def test_no_grad_and_detach_share_and_stop():
    def stops(x):
        y = (x * 2).detach()
        y.add_(1)
        assert not y.requires_grad
        with torch.no_grad():
            x.mul_(3)
        return y, x

    same(stops, torch.ones(3, requires_grad=True))
