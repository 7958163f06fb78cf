"""Which calls the CPU may refuse although meta takes them: those it was not asked about yet, and those where it looks at more.

What meta misses is about dtypes and numbers, about memory that overlaps, about operands without elements, and, in a few operations, about
sizes: those are only told apart where asking costs little.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from surestep.tensor.on_cpu import LIMIT
from surestep.tensor.stand_ins import numel, tensors
from surestep.tensor.xla_tensor import XlaTensor

_SMALL = 1 << 14  # elements up to which the CPU is asked for all new sizes, and for the bounds of a distribution at each new call
_taken: set[tuple] = set()
# Backward of normalizations: what the forward has saved is float32 for narrower images too, as on CUDA; the CPU refuses that.
SAVED_STATISTICS = {torch.ops.aten.native_layer_norm_backward.default, torch.ops.aten.native_batch_norm_backward.default}
_MOST = 20_000


def kind(func: Any, args: tuple, kwargs: dict) -> tuple:
    """What calls have in common that the CPU takes or refuses alike: the dtypes, how large the numbers are, and the sizes if small."""
    small = numel(args, kwargs) <= _SMALL
    return (func, *(_kind(value, small) for value in (*args, *kwargs.values())))


def _kind(value: Any, small: bool) -> Any:
    if isinstance(value, (list, tuple)):
        leaves = tree_leaves(value)
        return tuple(_kind(t, small) if isinstance(t, torch.Tensor) else t if small and type(t) is int else type(t) for t in leaves)
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape if small else value.ndim == 0
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        bits = int(value).bit_length()
        return type(value), value < 0, next((size for size in (7, 8, 15, 31, 63, 64) if bits <= size), None)
    return (float, "not finite") if type(value) is float else type(value)


def may_refuse(func: Any, args: tuple, kwargs: dict, kind: tuple) -> bool:
    """Whether the CPU has to be asked."""
    bounds = torch.Tag.nondeterministic_seeded in func.tags and numel(args, kwargs) <= _SMALL  # of a distribution: numbers
    if kind not in _taken or bounds:
        return True
    return func._schema.is_mutable and (_may_overlap(func, args, kwargs) or any(t._layout.numel == 0 for t in tensors(args, kwargs)))


def taken(kind: tuple, args: tuple, kwargs: dict) -> None:
    """Notes that the CPU took such a call, if it was asked."""
    if numel(args, kwargs) <= LIMIT:
        if len(_taken) >= _MOST:
            _taken.clear()
        _taken.add(kind)


def overlap(func: Any, args: tuple, kwargs: dict) -> tuple | None:
    """How the operands of a write lie over the storages that they share, where the CPU may refuse that; None where it can't, or has taken
    the like.
    """
    if not _may_overlap(func, args, kwargs):
        return None
    storages: dict[int, int] = {}
    lie = (func, *((storages.setdefault(id(t._storage), len(storages)), t._layout) for t in tensors(args, kwargs)))
    return None if lie in _taken else lie


def _may_overlap(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a target's elements overlap each other, or another operand's: PyTorch refuses most such writes, but not on meta."""
    written = [
        value
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for value in tree_leaves(args[position] if position < len(args) else kwargs.get(argument.name))
        if isinstance(value, XlaTensor)
    ]
    others = tensors(args, kwargs)
    for target in written:
        layout = target._layout
        repeated = any(stride == 0 and size > 1 for size, stride in zip(layout.sizes, layout.strides, strict=True))
        if repeated or (not layout.dense and layout.span < layout.numel):
            return True
        if any(other is not target and other._storage is target._storage and layout.meets(other._layout) for other in others):
            return True
    return False
