"""JAX functions on tensors: values and gradients are PyTorch's own."""

import gc

import jax.numpy as jnp
import pytest
import torch

import surestep
from surestep.tensor.calling import call_jax


def wave(x, y, *, factor=1.0):
    return jnp.sin(x) * y * factor


def several(given, power):
    return {"power": given["x"] ** power, "indices": jnp.argsort(given["x"]), "sums": (given["x"].sum(), given["y"].sum())}


def both(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    ours = [torch.randn(shape, dtype=dtype).to("xla").requires_grad_() for shape in shapes]
    return ours, [tensor.detach().cpu().requires_grad_() for tensor in ours]


def same(ours, theirs):
    torch.testing.assert_close([each.detach().cpu() for each in ours], [each.detach() for each in theirs])


def test_values_and_gradients():
    (x, y), (u, v) = both((3, 4), (4,))
    for factor in (1.0, 2.0):
        found, expected = call_jax(wave, (x, y), {"factor": factor}), torch.sin(u) * v * factor
        same([found], [expected])
        same(torch.autograd.grad(found.sum(), (x, y)), torch.autograd.grad(expected.sum(), (u, v)))


def test_nestings():
    (x, y), (u, v) = both((5,), (2, 3))
    found = call_jax(several, ({"x": x, "y": y}, 3))
    same([found["power"], found["indices"], *found["sums"]], [u**3, u.argsort(), u.sum(), v.sum()])
    assert not found["indices"].requires_grad
    (found["power"].sum() + found["sums"][1]).backward()
    (u**3).sum().backward()
    same([x.grad, y.grad], [u.grad, torch.ones(2, 3)])


def test_complex_numbers():
    (z,), (w,) = both((4,), dtype=torch.complex64)
    call_jax(lambda z: z * z * (1 + 2j), (z,)).abs().sum().backward()
    (w * w * (1 + 2j)).abs().sum().backward()
    same([z.grad], [w.grad])


def test_indices_have_no_gradient():
    (x,), (u,) = both((4,))
    index = torch.tensor([0, 2])
    call_jax(lambda x, i: x[i], (x, index.to("xla"))).sum().backward()
    u[index].sum().backward()
    same([x.grad], [u.grad])


def test_the_derivative_of_a_derivative():
    (x,), (u,) = both((4,))
    for tensor, cube in ((x, call_jax(lambda x: x**3, (x,))), (u, u**3)):
        (grad,) = torch.autograd.grad(cube.sum(), tensor, create_graph=True)
        grad.sum().backward()
    same([x.grad], [u.grad])


def test_it_is_recorded_as_other_operations_are(metrics):
    (x,), (u,) = both((4,))
    programs = []
    for _ in range(3):
        with surestep.step():
            found = call_jax(wave, (x + 1, x)) * 2
        programs.append(metrics().compile.count)
    assert metrics().implicit.total() == 0 and programs[1] == programs[2]
    same([found], [torch.sin(u + 1) * u * 2])


def test_a_function_that_nobody_has_any_more():
    (x,), _ = both((4,))

    def local(x):
        return x * 5

    found = call_jax(local, (x,))
    del local
    gc.collect()
    found.sum().backward()
    same([x.grad], [torch.full((4,), 5.0)])


def test_what_it_cant_take():
    x = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match=r"at least one, and was given tensors on no device"):
        call_jax(wave, (1, 2))
    with pytest.raises(TypeError, match=r"at least one, and was given tensors on \['cpu', 'xla:0'\]"):
        call_jax(wave, (x, torch.ones(2)))
    with pytest.raises(TypeError, match="is no tensor, and can't be hashed"):
        call_jax(wave, (x, torch.Generator), {"factor": bytearray()})
    with pytest.raises(TypeError, match="not a valid JAX type"):
        call_jax(lambda x: "text", (x,))
