"""What PyTorch's lazy modules (``nn.LazyLinear``) hold until they are first called, moved to the device before its shape is known.

It stays what it is for PyTorch, an uninitialized parameter or buffer, and makes itself on the device that it was moved to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, UninitializedTensorMixin  # type: ignore[attr-defined]

from surestep.tensor.xla_tensor import XlaTensor


class _OnDevice(UninitializedTensorMixin):
    """What ``Module.to`` and ``copy.deepcopy`` do with it, and PyTorch's class allows on no tensor without a shape."""

    def materialize(self, shape: Any, device: Any = None, dtype: torch.dtype | None = None) -> None:
        made = torch.empty(shape, device=device or self.device, dtype=dtype or self.dtype)
        self.__class__ = XlaTensor  # type: ignore[assignment]
        self.data = made

    def detach(self) -> Any:
        return converted(self, None, self.dtype)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.requires_grad_(self, requires_grad)  # type: ignore[arg-type]

    def __deepcopy__(self, memo: dict) -> Any:
        memo[id(self)] = copied = self.detach().requires_grad_(self.requires_grad)
        return copied


class UninitializedXlaParameter(_OnDevice, UninitializedParameter, XlaTensor):
    """A parameter without a shape on an xla device."""


class UninitializedXlaBuffer(_OnDevice, UninitializedBuffer, XlaTensor):
    """A buffer without a shape on an xla device."""


def like(target: torch.Tensor, source: UninitializedTensorMixin) -> Any:
    """A new xla tensor without elements becomes what the source is."""
    if isinstance(source, UninitializedParameter):
        target._is_param = True  # type: ignore[attr-defined]  # by which PyTorch knows parameters of other classes
        target.__class__ = UninitializedXlaParameter
    else:
        target._is_buffer, target.persistent = True, source.persistent  # type: ignore[attr-defined]
        target.__class__ = UninitializedXlaBuffer
    return target


def converted(source: Any, device: torch.device | None, dtype: torch.dtype) -> Any:
    """Another one on an xla device, with this dtype.

    Raises:
        RuntimeError: It is to leave the device: PyTorch would have no parameter to put in its place.
    """
    device = device or source.device
    if device.type != "xla":
        raise RuntimeError(
            f"a lazy module can't be moved from {source.device} to {device} before its first call: call it once, or move it later"
        )
    return like(torch.empty(0, device=device, dtype=dtype), source)
