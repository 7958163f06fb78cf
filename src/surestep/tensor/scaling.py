"""What ``torch.amp.GradScaler`` asks of a device: unscaling gradients while looking for infinities, and adapting the scale.

On the device; that the scaler then reads whether there was one, before it steps the optimizer, is PyTorch's own way.
"""

from __future__ import annotations

import torch


def unscale(args: tuple, kwargs: dict) -> None:
    """``_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale)``"""
    gradients, found_inf, inverse = args
    for gradient in gradients:
        found_inf.copy_(torch.maximum(found_inf, 1.0 - torch.isfinite(gradient).all().to(found_inf.dtype)))
        gradient.copy_(gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * inverse)


def update_scale(args: tuple, kwargs: dict) -> torch.Tensor:
    """``_amp_update_scale_(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval)``

    Backs off after an infinity, grows after ``growth_interval`` steps without one, unless that would be infinite.
    """
    scale, tracker, found_inf, growth, backoff, interval = args
    failed = found_inf != 0
    steps = tracker + 1
    grows = (steps == interval) & ~failed
    grown = scale * growth
    grown = torch.where(torch.isfinite(grown), grown, scale)
    scale.copy_(torch.where(failed, scale * backoff, torch.where(grows, grown, scale)))
    tracker.copy_(torch.where(failed | grows, torch.zeros_like(tracker), steps))
    return scale
