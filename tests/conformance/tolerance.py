"""How near is near enough: what op_db says of an entry, else torch.testing's defaults."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

# The CPU's own kernels accumulate in these so coarsely that PyTorch, too, compares devices with more room.
FLOOR = {torch.float16: (1e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2), torch.float32: (1.3e-6, 1e-5), torch.complex64: (1.3e-6, 1e-5)}
CEILING = 0.1  # an override beyond this is for one test's odd inputs, and would let anything pass


def defaults(dtype: torch.dtype) -> tuple[float, float]:
    return FLOOR.get(dtype) or default_tolerances(dtype)


def tolerance(decorators: Any, dtype: torch.dtype) -> tuple[float, float]:
    """The widest of an entry's overrides for a dtype: (rtol, atol)."""
    rtol, atol = defaults(dtype)
    for decorator in decorators:
        inner = decorator.decorators if isinstance(decorator, DecorateInfo) else [decorator]
        for found in inner:
            if isinstance(found, toleranceOverride) and dtype in found.d:
                atol, rtol = max(atol, min(found.d[dtype].atol, CEILING)), max(rtol, min(found.d[dtype].rtol, CEILING))
            elif isinstance(found, precisionOverride) and dtype in found.d:
                atol = max(atol, min(found.d[dtype], CEILING))
    return rtol, atol
