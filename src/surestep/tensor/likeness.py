"""``ones_like``, ``new_zeros`` and their kin, which take a tensor for its figures only, and may be asked for another device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surestep import _compat
from surestep.tensor.xla_tensor import XlaTensor


def handler(func: torch._ops.OpOverload, here: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
    """``here`` makes the result where the tensor is; elsewhere it is made like a tensor without values that lies as that one."""
    arguments = func._schema.arguments
    if _compat.has_composite_kernel(func):  # `to`, where it arrives as itself (in inference mode): it wants the values
        return here
    if str(arguments[0].type) != "Tensor" or all(argument.name != "device" for argument in arguments):
        return here

    def handle(args: tuple, kwargs: dict) -> Any:
        device, tensor = kwargs.get("device"), args[0]
        if device is None or type(tensor) is not XlaTensor or device == tensor.device or (device.type == "xla" and device.index is None):
            return here(args, kwargs)
        return func(tensor._figures, *args[1:], **kwargs)

    return handle
