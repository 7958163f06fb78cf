"""Tensors that are to lie over the devices in the same way, without saying which."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from surestep.execute.world import is_spmd
from surestep.tensor import sharding
from surestep.tensor.xla_tensor import XlaTensor


class _Alike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: XlaTensor, second: XlaTensor) -> tuple[XlaTensor, XlaTensor]:
        return sharding.alike(first, second)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients


def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """Copies of two nestings of tensors, of which those in the same places lie over the devices in the same way, whichever XLA chooses.

    Use at least one of the results. Gradients go through.

    Args:
        a: A nesting of tensors on the xla device, and ``None``.
        b: Another of the same structure, whose tensors have the same shapes.

    Raises:
        ValueError: They differ in structure or shapes.
        RuntimeError: SPMD is off.
    """
    if not is_spmd():
        raise RuntimeError("shard_as needs SPMD: call torch_xla.runtime.use_spmd() at the start of the program")
    firsts, structure = _pytree.tree_flatten(a)
    seconds, other = _pytree.tree_flatten(b)
    if structure != other:
        raise ValueError(f"shard_as: the two must have the same structure, got {structure} and {other}")
    pairs = [_pair(first, second) for first, second in zip(firsts, seconds, strict=True)]
    return _pytree.tree_unflatten([pair[0] for pair in pairs], structure), _pytree.tree_unflatten([pair[1] for pair in pairs], structure)


def _pair(first: Any, second: Any) -> tuple[Any, Any]:
    if first is None and second is None:
        return None, None
    if not isinstance(first, XlaTensor) or not isinstance(second, XlaTensor):
        raise ValueError(f"shard_as: expected two tensors on the xla device, got a {type(first).__name__} and a {type(second).__name__}")
    if first.shape != second.shape:
        raise ValueError(f"shard_as: two tensors must have the same shape, got {list(first.shape)} and {list(second.shape)}")
    found: Any = _Alike.apply(first, second)
    return found
