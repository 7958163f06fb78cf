"""One round of a scan and its derivative, as torch_xla gives them; tests/control has the loop."""

import pytest
import torch
from torch.utils._pytree import tree_map

from surestep.torch_xla.experimental.scan import tree_flatten_none, value_and_grad_partitioned


def product(carry, x):
    new = carry @ x
    return new, new


def layer(carry, x):
    a = torch.sin(carry["a"] @ x["weight"] + x["bias"])
    b = torch.cos(carry["b"] @ x["weight"])
    return {"a": a, "b": b}, (torch.sigmoid(a + b), None)


def half(carry, x):
    return carry * 2, x["i"] + 1


ROUNDS = {
    "product": (product, torch.rand(2, 2), torch.rand(2, 2)),
    "layer": (layer, {"a": torch.rand(2, 3), "b": torch.rand(2, 3)}, {"weight": torch.rand(3, 3), "bias": torch.rand(2, 3)}),
    "no gradient": (half, torch.rand(3), {"i": torch.arange(3), "unused": torch.rand(2)}),
}


def gradients(fn, carry, x):
    def of(tensor):
        return tensor.grad if tensor.grad is not None or not tensor.is_floating_point() else torch.zeros_like(tensor)

    carry, x = tree_map(lambda tensor: tensor.clone().requires_grad_(tensor.is_floating_point()), (carry, x))
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(fn(carry, x)) if leaf is not None and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
    return tree_map(of, (carry, x))


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_and_its_derivative(name):
    fn, carry, x = ROUNDS[name]
    ours = tree_map(lambda tensor: tensor.to("xla"), (carry, x))
    forward, alias_input, backward = value_and_grad_partitioned(fn, ours[0], tree_map(lambda tensor: tensor[None], ours[1]))
    new_carry, (y, partial) = forward(*ours)
    cpu = tree_map(lambda tensor: tensor if tensor is None else tensor.cpu(), (new_carry, y))
    torch.testing.assert_close(cpu, fn(carry, x))
    ones = tree_map(lambda tensor: tensor if tensor is None else torch.ones_like(tensor), (new_carry, y))
    found = backward(ones[0], (ones[1], alias_input(partial, ours[1])))
    torch.testing.assert_close(tree_map(lambda tensor: tensor if tensor is None else tensor.cpu(), found), gradients(fn, carry, x))


def test_nestings_without_none():
    flat, unflatten = tree_flatten_none(((1, 2), (None, 3), None))
    assert flat == (1, 2, 3) and unflatten((4, 5, 6)) == ((4, 5), (None, 6), None)
