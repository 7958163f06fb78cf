"""``rrelu`` in training: the slopes are drawn into an operand, which the schema calls ``noise``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def rrelu_with_noise(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> torch.Tensor:
    """Returns the result; ``noise`` holds the slopes, one where the operand is positive."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2)
    slopes = torch.empty_like(x).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(x <= 0, slopes, 1))
    return x * noise


def rrelu_with_noise_(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The same, written over the operand."""
    return x.copy_(rrelu_with_noise(x, *args, **kwargs))
