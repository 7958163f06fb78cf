"""Which way the dispatcher sends an ATen overload, without calling it."""

from __future__ import annotations

from unittest import mock

import torch

from surestep.tensor import dispatch
from surestep.tensor.operation import Operation


def overload(name: str) -> torch._ops.OpOverload:
    """``add.Tensor``, or ``relu`` for ``relu.default``."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def way(func: torch._ops.OpOverload) -> str:
    """``own`` (handled by surestep itself, recorded by it), ``lowered``, ``decomposed`` or ``host``."""
    with mock.patch("surestep.tensor.host.fallback", return_value=None):
        if dispatch.handler_for(func) is None:
            return "host"
    if func in dispatch._OWN or func.is_view or torch.Tag.inplace_view in func.tags:
        return "own"
    if Operation(func).lowering is not None:
        return "lowered"
    return "decomposed"
