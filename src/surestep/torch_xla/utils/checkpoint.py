"""torch_xla.utils.checkpoint: PyTorch's own recomputation, which works on the device as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

__all__ = ["checkpoint"]


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """``function(*args)``, whose intermediate values are computed again in the backward pass instead of being kept."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
