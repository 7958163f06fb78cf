"""To and from JAX and DLPack, without a copy where it can be. What is given away is a snapshot: later writes don't show in it."""

from __future__ import annotations

from typing import Any

import torch

from surestep.execute import dtypes
from surestep.execute.devices import jax_devices
from surestep.observe.events import Cause
from surestep.tensor import host, record
from surestep.tensor.devices import recorder
from surestep.tensor.xla_tensor import XlaTensor, fresh
from surestep.trace.recorder import LOCK
from surestep.trace.storage import Storage


def to_jax(tensor: torch.Tensor) -> Any:
    """An xla tensor's value as a ``jax.Array`` of its shape; no copy where the tensor is its whole storage."""
    if not isinstance(tensor, XlaTensor):
        raise TypeError(f"to_jax takes an xla tensor, not one on {tensor.device}: move it first, tensor.to('xla')")
    with LOCK:
        array, _ = host.array_of(tensor, Cause.VALUE)
        if array is tensor._storage.array:
            tensor._storage.exported = True
        return array


def from_jax(array: Any) -> torch.Tensor:
    """A ``jax.Array`` as an xla tensor; no copy, and the array stays valid: writing to the tensor makes a new value."""
    placed = list(array.devices())
    if len(placed) != 1 or placed[0] not in jax_devices():
        raise ValueError(f"from_jax takes an array on one of this process's xla devices, not on {placed}: jax.device_put it first")
    where = recorder(torch.device("xla", jax_devices().index(placed[0])))
    storage = Storage(where, record._dense(tuple(array.shape), dtypes.to_torch(array.dtype)), array)
    storage.exported = True
    return fresh(storage)


def dlpack(tensor: XlaTensor, **options: Any) -> Any:
    """``tensor.__dlpack__``: JAX exports its array."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    return to_jax(tensor).__dlpack__(**options)


def dlpack_device(tensor: XlaTensor) -> Any:
    """``tensor.__dlpack_device__``: DLPack's numbers of the kind of device and of the device, by JAX's word."""
    return to_jax(tensor).__dlpack_device__()
