"""``module.cpu()``: parameters keep their identity when they leave the device, as they do when they come.

PyTorch's ``Module._apply`` makes new Parameters where a tensor moves to a device of another kind: an optimizer would go on training the old
ones, silently, and tied weights would come apart. It does so after it has called ``param.to(...)``, so here, when the caller is ``Module._apply``,
the parameter's contents are swapped with the copy's, and PyTorch finds nothing left to do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_APPLY = torch.nn.Module._apply.__code__


def off_device(tensor: Any, convert: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """``convert(tensor)``; for a parameter that a module moves, the parameter itself, with the moved contents."""
    moved = convert(tensor)
    if moved.device.type == "xla" or not isinstance(tensor, torch.nn.Parameter) or not _called_by_module():
        return moved
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    gradient, tensor.grad = tensor.grad, None
    torch.utils.swap_tensors(tensor, torch.nn.Parameter(moved, requires_grad=tensor.requires_grad))
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks
    if gradient is not None:
        tensor.grad = gradient.to(device=tensor.device, dtype=tensor.dtype)
    return tensor


def _called_by_module() -> bool:
    # off_device <- XlaTensor.to <- the function that Module.to or Module.cpu gives to _apply <- _apply
    frame = sys._getframe(2)
    for _ in range(2):
        frame = frame.f_back
        if frame is None:
            return False
    return frame.f_code is _APPLY
