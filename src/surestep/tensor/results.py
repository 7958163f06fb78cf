"""Results that meta gets wrong: some of its kernels are written in Python, and forget how the CPU's lay their results out, or a shape."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from surestep.tensor.stand_ins import numel, tensors

_aten = torch.ops.aten
_SMALL = 1 << 14  # elements up to which it costs little to ask the CPU
_wrong: set[Any] = set()  # operations seen to have other strides on the CPU: it is asked each time


def in_doubt(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the CPU has to be asked how the result lies."""
    return func in _wrong or (numel(args, kwargs) <= _SMALL and any(not t._layout.contiguous for t in tensors(args, kwargs)))


def corrected(func: Any, args: tuple, result: Any, theirs: Any) -> Any:
    """Meta's result, lying as the CPU's (None where that couldn't be had)."""
    if func is _aten.multilabel_margin_loss_forward.default and args[0].dim() < 2:
        result = (result[0].new_empty(()), result[1])  # the loss of a single sample has no dimension, whatever the reduction

    def lying(ours: Any, cpus: Any) -> Any:
        tensors = isinstance(ours, torch.Tensor) and isinstance(cpus, torch.Tensor)
        if not tensors or ours.shape != cpus.shape or ours.stride() == cpus.stride():
            return ours
        _wrong.add(func)
        return torch.empty_strided(cpus.shape, cpus.stride(), dtype=ours.dtype, device="meta")

    return result if theirs is None else tree_map(lying, result, theirs)
