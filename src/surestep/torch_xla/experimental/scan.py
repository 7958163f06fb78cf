"""torch_xla.experimental.scan: the loop, and the forward and backward functions of one round as torch_xla gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from surestep.control.scan import scan
from surestep.torch_xla import _later

__all__ = ["scan", "tree_flatten_none", "value_and_grad_partitioned"]


def tree_flatten_none(pytree: Any) -> tuple[tuple[Any, ...], Callable[[Any], Any]]:
    """The leaves without those that are None, and what makes the nesting of such leaves again."""
    leaves, structure = tree_flatten(pytree)
    places = [leaf is not None for leaf in leaves]

    def unflatten(flat: Any) -> Any:
        waiting = iter(flat)
        return tree_unflatten([next(waiting) if there else None for there in places], structure)

    return tuple(leaf for leaf in leaves if leaf is not None), unflatten


def value_and_grad_partitioned(
    fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, partition_fn: Any = None
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """One round of ``scan``, and its derivative: ``forward``, ``alias_input`` and ``backward``.

    ``forward(carry, x)`` gives ``(new_carry, (y, partial))``; ``alias_input(partial, x)`` what ``backward`` needs of a round, which is run
    again whatever ``partition_fn`` says; ``backward(grad_new_carry, (grad_y, activations))`` gives ``(grad_carry, grad_x)``.
    ``scan`` itself needs none of them.
    """
    count = len(tree_flatten(init)[0])
    structures = tree_flatten(init)[1], tree_flatten(xs)[1]

    def forward(carry: Any, x: Any) -> Any:
        with torch.no_grad():
            new_carry, y = fn(carry, x)
        return new_carry, (y, tuple(tree_flatten(carry)[0]))

    def alias_input(partial: tuple[torch.Tensor, ...], x: Any) -> tuple[torch.Tensor, ...]:
        return (*partial, *tree_flatten(x)[0])

    def backward(grad_new_carry: Any, of_round: tuple[Any, tuple[torch.Tensor, ...]]) -> tuple[Any, Any]:
        grad_y, activations = of_round
        with torch.enable_grad():
            given = [tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex()) for tensor in activations]
            results = fn(tree_unflatten(given[:count], structures[0]), tree_unflatten(given[count:], structures[1]))
        pairs = zip(tree_flatten(results)[0], tree_flatten((grad_new_carry, grad_y))[0], strict=True)
        outputs, grads = zip(*((out, grad) for out, grad in pairs if out is not None and out.requires_grad), strict=True)
        wanted = [tensor for tensor in given if tensor.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True, materialize_grads=True))
        of_given = [next(found) if tensor.requires_grad else None for tensor in given]
        return tree_unflatten(of_given[:count], structures[0]), tree_unflatten(of_given[count:], structures[1])

    return forward, alias_input, backward


__getattr__ = _later.getter("torch_xla.experimental.scan")
