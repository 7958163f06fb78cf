"""torch_xla.amp: mixed precision. PyTorch's own, for the device."""

from __future__ import annotations

from typing import Any

import torch

from surestep.torch_xla import _later

__all__ = ["GradScaler", "autocast"]


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast`` on the xla device: bfloat16 unless another dtype is given."""

    def __init__(
        self, device: torch.device | str = "xla", enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True
    ):
        super().__init__("xla", enabled=enabled, dtype=dtype or torch.bfloat16, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for the xla device. Whether there was an overflow is decided on the device: its ``step`` reads no value."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        **_: Any,
    ):
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


__getattr__ = _later.getter("torch_xla.amp")
