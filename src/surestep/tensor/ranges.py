"""``arange`` of int64: the CPU counts its elements by the whole parts of the bounds, and meta by the bounds."""

from __future__ import annotations

import math
from typing import Any

import torch

from surestep.tensor import record
from surestep.tensor.operation import Operation


def handler(func: torch._ops.OpOverload) -> Any:
    """Records an overload of ``arange``."""
    recorded = record.handler(Operation(func))

    def arange(args: tuple, kwargs: dict) -> Any:
        dtype = kwargs["out"].dtype if "out" in kwargs else kwargs.get("dtype")
        if dtype is torch.int64:
            args = tuple(int(a) if type(a) is float and math.isfinite(a) else a for a in args)
        return recorded(args, kwargs)

    return arange
