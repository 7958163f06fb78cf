"""Copies: from the CPU to the device and back, from device to device, and on one device with another dtype or layout."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from surestep.execute import transfer
from surestep.observe import events
from surestep.tensor import host, metadata, moving, record, uninitialized, unrepresented
from surestep.tensor.devices import recorder
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh
from surestep.trace.layout import Layout, layout
from surestep.trace.recorder import LOCK
from surestep.trace.storage import Storage

_aten = torch.ops.aten


def upload(tensor: torch.Tensor, device: torch.device | None, keep_strides: bool = True) -> XlaTensor:
    """A CPU tensor as a new xla tensor, with its strides where they are dense."""
    tensor = tensor.detach()
    unrepresented.check(tensor)
    where = recorder(device)
    wanted = layout(tensor.shape, tensor.stride(), 0, tensor.dtype)
    if not (keep_strides and wanted.dense):
        wanted = record._dense(tensor.shape, tensor.dtype)
    array = _sent(tensor, where.device)
    return fresh(Storage(where, wanted, array))


def _sent(tensor: torch.Tensor, device: int) -> Any:
    start = time.perf_counter()
    array = transfer.to_device(tensor, device)
    events.emit("transfer_in", None, nbytes=array.nbytes, seconds=time.perf_counter() - start, source=tensor, array=array)
    return array


def copy_(args: tuple, kwargs: dict) -> torch.Tensor:
    """``target.copy_(source)`` where one of them, or both, is on the device."""
    target, source = args[0], args[1]
    if type(target) is not XlaTensor:
        if target.device.type == "xla":
            copy_((metadata.behind(target), source), {})
            return target
        source = source if type(source) is XlaTensor else metadata.behind(source)
        target.copy_(host.to_cpu(source))
        return target
    if source.device.type == "xla" and type(source) is not XlaTensor:
        source = metadata.behind(source)
    if type(source) is not XlaTensor:
        return _copy_from_host(target, source)
    if source._storage.trace is not target._storage.trace:
        return copy_((target, between(source, target.device)), {})
    if source is target:
        return target
    return _COPY(args[:2], {})


def _copy_from_host(target: XlaTensor, source: torch.Tensor) -> XlaTensor:
    if isinstance(source, UninitializedTensorMixin):
        return uninitialized.like(target, source)
    hooks = hooks_of(source)
    if isinstance(source, torch.nn.Parameter):
        moving.check_swap(source)
    source = source.detach()
    if source.device.type != "cpu":
        source = source.cpu()
    unrepresented.check(source)
    with LOCK:
        storage, view = target._storage, target._layout
        if (
            storage.trace.watch is None  # else a compiled call is recorded, and what it writes is to be a result of its program
            and source.shape == view.sizes
            and view.dense
            and view.numel == storage.layout.numel
            and (view is storage.layout or (storage.unwritten and view.dtype == storage.layout.dtype))
        ):
            array = _sent(source.to(view.dtype), storage.trace.device)
            storage.lie_as(view)
            replace(storage, array)
            storage.hooks = hooks
            return target
    return _COPY((target, upload(source, target.device)), {})


def replace(storage: Storage, array: Any) -> None:
    """The storage's value is this array now, which nobody else holds."""
    if storage.trace.outside is not None:
        storage.trace.outside.check_write(storage)
    if storage.exported:
        storage.trace.protect(storage.array)
    storage.array, storage.serial, storage.exported, storage.uniform, storage.lost = array, 0, False, None, None


def hooks_of(source: torch.Tensor) -> Any:
    """The gradient hooks of a parameter that is being moved, with the identity of the parameter; None where it has none.

    ``module.to('xla')`` swaps its contents with the copy's, and its hooks are lost unless they are put back; that is done when its value is
    first used.
    """
    if not source.is_leaf:
        return None
    backward, after = source._backward_hooks, getattr(source, "_post_accumulate_grad_hooks", None)
    return (id(source), backward, after) if backward or after else None


def clone(args: tuple, kwargs: dict) -> Any:
    """``tensor.clone()``"""
    return _lying_as(args[0], _CLONE(args, kwargs))


def _lying_as(tensor: Any, made: Any) -> Any:
    """A copy lies over the devices as the tensor does."""
    if type(tensor) is XlaTensor and tensor._storage.sharding is not None and tensor._layout is tensor._storage.layout:
        made._storage.sharding = tensor._storage.sharding if made._layout.sizes == tensor._layout.sizes else None
    return made


_CLONE = record.handler(Operation(_aten.clone.default))
_COPY = record.handler(Operation(_aten.copy_.default))
_CAST = record.handler(Operation(_aten._to_copy.default))


def to_copy(args: tuple, kwargs: dict) -> torch.Tensor:
    """``.to(...)`` where something changes: device, dtype or memory format."""
    tensor = args[0]
    device = kwargs.get("device")
    dtype = kwargs.get("dtype") or tensor.dtype
    memory_format = kwargs.get("memory_format")
    if type(tensor) is not XlaTensor:  # towards the device
        if isinstance(tensor, UninitializedTensorMixin):
            return uninitialized.converted(tensor, device, dtype)
        tensor = tensor.detach()
        converted = tensor.to(dtype=dtype, memory_format=memory_format or torch.preserve_format)
        return upload(converted, device)
    if device is None or device == tensor.device or (device.type == "xla" and device.index is None):
        return _lying_as(tensor, _CAST(args, {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format")}))
    if device.type == "xla":
        moved = between(tensor, device)
        return moved if dtype is tensor.dtype else to_copy((moved,), {"dtype": dtype})
    result = host.to_cpu(tensor)
    return result.to(device=device, dtype=dtype, memory_format=memory_format or torch.preserve_format)


def between(tensor: XlaTensor, device: torch.device) -> XlaTensor:
    """A copy on another xla device."""
    with LOCK:
        where = recorder(device)
        array, found = host.array_of(tensor, events.Cause.TRANSFER)
        return fresh(Storage(where, found, transfer.between(array, where.device)))


def empty(args: tuple, kwargs: dict) -> XlaTensor:
    """``torch.empty``: memory that was never written (it reads as zeros)."""
    sizes, memory_format = tuple(args[0]), kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if memory_format is None or memory_format is torch.contiguous_format:
        return _empty(record._dense(sizes, dtype), kwargs)
    like = torch.empty(sizes, dtype=dtype, device="meta", memory_format=memory_format)
    return _empty(layout(like.shape, like.stride(), 0, dtype), kwargs)


def empty_strided(args: tuple, kwargs: dict) -> XlaTensor:
    """``torch.empty_strided(size, stride)``; where the strides leave holes, the storage is one row and the tensor a view of it."""
    return _empty(layout(tuple(args[0]), tuple(args[1]), 0, kwargs.get("dtype") or torch.get_default_dtype()), kwargs)


def _empty(wanted: Layout, kwargs: dict) -> XlaTensor:
    unrepresented.check_options(kwargs.get("layout"), wanted.dtype)
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned: the xla device copies from any host memory; leave pin_memory out")
    if any(size < 0 for size in wanted.sizes):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(wanted.sizes)}: {list(wanted.sizes)}")
    storage, view = record.empty_storage(recorder(kwargs.get("device")), wanted.sizes, wanted.strides, wanted.dtype)
    return fresh(storage) if view is storage.layout else alias(storage, view, None)


def new_empty(args: tuple, kwargs: dict) -> torch.Tensor:
    """``tensor.new_empty(size)``; may be asked for another device."""
    return _like(args[0], kwargs, lambda options: empty((args[1],), options), lambda options: torch.empty(args[1], **options))


def new_empty_strided(args: tuple, kwargs: dict) -> torch.Tensor:
    """``tensor.new_empty_strided(size, stride)``; may be asked for another device."""
    return _like(
        args[0], kwargs, lambda options: empty_strided(args[1:], options), lambda options: torch.empty_strided(*args[1:], **options)
    )


def empty_like(args: tuple, kwargs: dict) -> torch.Tensor:
    """As in PyTorch: dense strides are kept, others become what an elementwise operation would give."""
    tensor = args[0]
    found = tensor._layout if type(tensor) is XlaTensor else layout(tensor.shape, tensor.stride(), 0, tensor.dtype)
    stand = torch.empty_strided(found.sizes, found.strides, dtype=found.dtype, device="meta")
    like = torch.empty_like(stand, memory_format=kwargs.get("memory_format") or torch.preserve_format)
    return new_empty_strided((tensor, like.shape, like.stride()), {k: v for k, v in kwargs.items() if k != "memory_format"})


def _like(tensor: torch.Tensor, kwargs: dict, ours: Any, theirs: Any) -> torch.Tensor:
    options = {name: value for name, value in kwargs.items() if value is not None}
    options.setdefault("dtype", tensor.dtype)
    options.setdefault("device", tensor.device)
    return ours(options) if torch.device(options["device"]).type == "xla" else theirs(options)
