"""``assume_pure``: the same results and gradients, without the function's Python."""

import copy

import pytest
import torch
from torch import nn

import surestep
from surestep.control.assume import PureModule, assume_pure


def counted(function):
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    return assume_pure(wrapped), calls


def test_results_and_gradients_without_its_python():
    weight = torch.randn(3, 3, device="xla", requires_grad=True)

    def function(a, b, *, scale, kept=None):
        return {"s": torch.sin(a @ b @ weight) * scale, "n": 3, "a": a}

    pure, calls = counted(function)
    for round in range(3):
        for scale in (2.0, 3.0):
            found = []
            for how in (function, pure):
                a = torch.full((3, 3), float(round), device="xla", requires_grad=True)
                result = how(a, a.detach() + 1, scale=scale)
                loss = result["s"].sum() + result["a"].sum()
                found.append([result["s"].detach(), *torch.autograd.grad(loss, [a, weight])])
                assert result["n"] == 3
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other)
        with torch.no_grad():
            weight.add_(1)
    assert len(calls) == 2  # one a scale


def test_random_numbers_are_new_at_each_call_and_follow_the_seed():
    pure, calls = counted(lambda x: torch.dropout(x, 0.5, True))
    x = torch.ones(64, device="xla")
    surestep.manual_seed(1)
    expected = [torch.dropout(x, 0.5, True) for _ in range(3)]
    surestep.manual_seed(1)
    for each in expected:
        assert torch.equal(pure(x), each)
    assert len(calls) == 1 and not torch.equal(expected[0], expected[1])


def test_kinds_of_arguments_and_modes():
    pure, calls = counted(lambda x: x @ x)
    x = torch.ones(2, 2, device="xla")
    for _ in range(2):
        pure(x)
        pure(torch.ones(3, 3, device="xla"))
        pure(x.double())
        with torch.no_grad():
            pure(x)
        with torch.autocast("xla", dtype=torch.bfloat16):
            assert pure(x).dtype is torch.bfloat16
    assert len(calls) == 5


def test_what_becomes_of_tensors_from_outside_is_seen():
    weight = torch.ones(2, device="xla")
    pure, calls = counted(lambda x: x * weight)
    x = torch.ones(2, device="xla")
    assert not pure(x).requires_grad
    weight.requires_grad_()
    pure(x * 3).sum().backward()
    assert weight.grad.tolist() == [3, 3]
    weight.data = torch.full((2,), 5.0, device="xla")
    assert pure(x).tolist() == [5, 5] and len(calls) == 3
    pure(x), pure(x * 2)
    assert len(calls) == 3


def test_one_inside_another_and_inside_a_scan():
    from surestep.control.scan import scan

    inner = assume_pure(torch.matmul)
    pure = assume_pure(lambda a, b: inner(a, b) + 1)
    a = torch.randn(3, 3, device="xla")
    for _ in range(2):
        torch.testing.assert_close(pure(a, a), a @ a + 1)
        carry, _ = scan(lambda c, x: (pure(c, x), None), a, torch.stack([a, a]))
        torch.testing.assert_close(carry, (a @ a + 1) @ a + 1)


def test_a_pure_module():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4)).to("xla")
    pure = PureModule(copy.deepcopy(net))
    x = torch.randn(2, 4, device="xla")
    for mode in (True, False, True):
        found = []
        for module in (net, pure):
            module.train(mode)
            module.zero_grad()
            surestep.manual_seed(1)
            result = module(x)
            result.square().sum().backward()
            found.append([result.detach(), *(p.grad for p in module.parameters())])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
    other = copy.deepcopy(pure)
    with torch.no_grad():
        other._module[0].weight.zero_()
    assert not torch.equal(other.eval()(x), pure.eval()(x))


def test_it_is_one_value_of_the_trace(metrics):
    deep = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)]).to("xla")
    pure = PureModule(deep)
    x = torch.ones(2, 4, device="xla")
    surestep.sync()
    with torch.no_grad():
        expected = deep(x)
        before = x._storage.trace.count
        found = pure(x)
        assert x._storage.trace.count - before <= 1
    torch.testing.assert_close(expected, found)


def test_errors():
    x = torch.ones(2, device="xla")
    buffer = torch.zeros(2, device="xla")
    for function, message in (
        (lambda x: x.add_(1), "writes in place to one of its arguments"),
        (lambda x: buffer.add_(x), "from outside of it"),
        (lambda x: x * x.sum().item(), "a value was read"),
    ):
        with pytest.raises(RuntimeError, match=message):
            assume_pure(function)(x)
    with pytest.raises(TypeError, match="a tensor on cpu"):
        assume_pure(torch.sin)(torch.ones(2))
    with pytest.raises(TypeError, match="can't be told whether it is the same"):
        assume_pure(lambda x, y: x)(x, bytearray(b"1"))
    assert x.tolist() == [1, 1] and buffer.tolist() == [0, 0]
