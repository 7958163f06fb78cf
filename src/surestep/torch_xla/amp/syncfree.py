"""torch_xla.amp.syncfree: optimizers whose step under a GradScaler reads no value.

A step with an overflow must change nothing. Where PyTorch's scaler reads on the host whether there was one, these step always, and
choose on the device between the old values and the new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SGD", "Adam", "AdamW"]


class _SyncFree(torch.optim.Optimizer):
    _step_supports_amp_scaling = True  # tells GradScaler to hand over the scale and whether gradients overflowed, unread

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, which changes nothing where the scaler found an overflow."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is None:
            return super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            if scale is not None:
                torch._foreach_div_([p.grad for p in parameters], scale)
            before = [(tensor, tensor.clone()) for p in parameters for tensor in (p, *_tensors(self.state[p]))]
            kept = {id(tensor) for tensor, _ in before}
            self.found_inf = self.grad_scale = None  # PyTorch's step takes them only where it is fused
            try:
                result = super().step(closure)
            finally:
                self.found_inf, self.grad_scale = found, scale
            # what this step has made (Adam's averages) begins at zero
            made = [tensor for p in parameters for tensor in _tensors(self.state[p]) if id(tensor) not in kept]
            before += [(tensor, torch.zeros_like(tensor)) for tensor in made]
            for tensor, old in before:
                tensor.copy_(torch.where(found.to(tensor.device) != 0, old, tensor))
        return result


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


class SGD(_SyncFree, torch.optim.SGD):
    """``torch.optim.SGD``."""


class Adam(_SyncFree, torch.optim.Adam):
    """``torch.optim.Adam``, its step count on the device."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"capturable": True, **kwargs})


class AdamW(_SyncFree, torch.optim.AdamW):
    """``torch.optim.AdamW``, its step count on the device."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"capturable": True, **kwargs})
