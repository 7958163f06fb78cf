"""``module.cpu()``: parameters keep their identity when they leave the device, as they do when they come.

PyTorch's ``Module._apply`` makes new Parameters where a tensor moves to a device of another kind: an optimizer would go on training the old
ones, silently, and tied weights would come apart. It does so after it has called ``param.to(...)``, so here, when the caller is
``Module._apply``, the parameter's contents are swapped with the copy's, and PyTorch finds nothing left to do.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from surestep import _compat

_APPLY = torch.nn.Module._apply.__code__


def off_device(tensor: Any, convert: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """``convert(tensor)``; for a parameter that a module moves, the parameter itself, with the moved contents."""
    moved = convert(tensor)
    if not isinstance(tensor, torch.nn.Parameter) or not called_by(_APPLY):
        return moved
    if isinstance(moved, UninitializedTensorMixin):
        return moved
    if moved.device.type == "xla":
        moved._stays = True  # type: ignore[attr-defined]  # read once, by TensorFlatten
        return moved
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    gradient, tensor.grad = tensor.grad, None
    try:
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(moved, requires_grad=tensor.requires_grad))
    except RuntimeError as error:
        tensor.grad = gradient
        raise _cannot_move(tensor, "a weak reference to it, a view of it, or a graph that holds it is alive", str(moved.device)) from error
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks
    if gradient is not None:
        tensor.grad = gradient.to(device=tensor.device, dtype=tensor.dtype)
    return tensor


def check_swap(parameter: torch.nn.Parameter) -> None:
    """Raises where PyTorch is about to swap a parameter's contents for its copy's on the device, and can't.

    PyTorch would only say that it couldn't.
    """
    if not called_by(_APPLY):
        return
    if weakref.getweakrefs(parameter):
        what = "a weak reference to it is alive"
    elif _compat.use_count(parameter) > _HOLDERS:
        what = "a view of it, or a graph that holds one, is alive"
    else:
        return
    raise _cannot_move(parameter, what, "xla")


def _cannot_move(parameter: torch.nn.Parameter, what: str, device: str) -> RuntimeError:
    return RuntimeError(
        f"module.to({device!r}) can't move a parameter of shape {list(parameter.shape)} in place, as the optimizer that holds it needs: "
        f"{what}. Move the module before that is made, delete it first, or build the module on the device: "
        f"`with torch.device({device!r}): model = ...`."
    )


# Who holds a parameter's contents while Module._apply moves it: the Python object, the call's argument, and its gradient accumulator.
_HOLDERS = 3


def called_by(code: CodeType) -> bool:
    """Whether a function is running, a few frames up."""
    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
