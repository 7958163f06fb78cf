"""torch_xla.utils.dlpack: tensors handed over without a copy, where the device is one that DLPack knows."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import interchange
from surestep.torch_xla import _later

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: torch.Tensor) -> Any:
    """A DLPack capsule of an xla tensor: of its value now, in the same memory. Capsules are taken once.

    Raises:
        TypeError: The tensor isn't on the xla device.
    """
    return interchange.to_jax(tensor).__dlpack__()


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor over the memory of another library's array, or of a capsule, which must be of this process's kind of device."""
    import jax

    if not hasattr(ext_tensor, "__dlpack__"):
        ext_tensor = _Capsule(ext_tensor)
    return interchange.from_jax(jax.dlpack.from_dlpack(ext_tensor))


class _Capsule:
    """A capsule as an array that exports it. It can't be asked where it is."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return interchange.to_jax(torch.empty(0, device="xla")).__dlpack_device__()


__getattr__ = _later.getter("torch_xla.utils.dlpack")
