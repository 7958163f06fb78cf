"""What changes which storage a tensor has, or how large that is: ``set_``, ``resize_``, ``.data =``, ``out=`` of another size."""

from __future__ import annotations

from typing import Any

import weakref

import torch

from surestep import _compat
from surestep.tensor.record import empty_storage
from surestep.tensor.xla_tensor import _data, XlaTensor, alias, refresh
from surestep.trace.layout import Layout, flat, layout
from surestep.trace.operands import ref
from surestep.trace.recorder import LOCK
from surestep.trace.storage import Storage

_aten = torch.ops.aten


def set_data(tensor: XlaTensor, value: torch.Tensor) -> None:
    """``tensor.data = value``: the tensor has value's storage from now on, autograd sees nothing."""
    if not isinstance(value, XlaTensor):
        raise RuntimeError(
            f"Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have incompatible tensor type: an xla tensor can't take "
            f"the data of one on {value.device}. Write tensor.data = value.to(tensor.device), or tensor.copy_(value) under torch.no_grad()."
        )
    _data.__set__(tensor, value)
    tensor._storage = value._storage
    refresh(tensor)


def take(tensor: XlaTensor, storage: Storage, wanted: Layout, base: XlaTensor | None) -> XlaTensor:
    """The tensor gets another storage and layout; aliases of its old storage keep that."""
    if base is not tensor:
        _compat.share_storage(tensor, base if base is not None else alias(storage, wanted, None))
    tensor._storage = storage
    _compat.change_metadata(_aten.as_strided_.default, tensor, wanted.sizes, wanted.strides, wanted.offset)
    tensor._layout = wanted
    tensor._read = None
    return tensor


def resize_out(tensor: XlaTensor, wanted: Layout) -> None:
    """An ``out=`` tensor of another size is given the right one, as PyTorch does."""
    if tensor._layout.numel:
        import warnings

        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(tensor._layout.sizes)}, which does not match the required output shape "
            f"{list(wanted.sizes)}. This behavior is deprecated, and in a future PyTorch release outputs will not be resized unless they have zero elements.",
            stacklevel=5,
        )
    resize(tensor, wanted.sizes, wanted.strides)


def resize(tensor: XlaTensor, sizes: tuple[int, ...], strides: tuple[int, ...] | None = None) -> XlaTensor:
    """``resize_``: the storage grows where it must (what is new reads as zeros), and all its tensors see it."""
    if strides is None:
        strides = torch.empty(tuple(sizes), device="meta").stride()
    wanted = layout(tuple(sizes), tuple(strides), tensor._layout.offset, tensor._layout.dtype)
    storage = tensor._storage
    with LOCK:
        grew = grow(storage, wanted.span * wanted.dtype.itemsize)
    return take(tensor, storage, wanted, None if grew else tensor)


def grow(storage: Storage, nbytes: int) -> bool:
    """The storage becomes at least so large; its elements keep their place. False where it was large enough."""
    old = storage.layout
    itemsize = old.dtype.itemsize
    needed = -(-nbytes // itemsize)
    if needed <= old.numel:
        return False
    new = flat(needed, old.dtype)
    if storage.array is None and storage.serial == 0 and storage.lost is None:
        storage.layout = new
        return True
    recorder = storage.trace
    as_row = flat(old.numel, old.dtype)
    row = recorder.read(storage, as_row)
    grown = Storage(recorder, new)
    recorder.write(grown, as_row, row)
    storage.layout = new
    recorder.define(storage, ref(grown.ref.index))
    return True


def resize_(args: tuple, kwargs: dict) -> XlaTensor:
    tensor, size = args[0], args[1]
    memory_format = kwargs.get("memory_format")
    strides = None
    if memory_format is not None and memory_format is not torch.contiguous_format:
        strides = torch.empty(tuple(size), device="meta", memory_format=memory_format).stride()
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    return resize(tensor, tuple(size), strides)


def set_tensor(args: tuple, kwargs: dict) -> XlaTensor:
    """``a.set_(b)``"""
    tensor, source = args[0], args[1]
    _same_kind(tensor, source)
    return take(tensor, source._storage, source._layout, source)


def set_nothing(args: tuple, kwargs: dict) -> XlaTensor:
    """``a.set_()``: no elements."""
    tensor = args[0]
    storage, wanted = empty_storage(tensor._storage.trace, (0,), (1,), tensor.dtype)
    return take(tensor, storage, wanted, None)


def set_tensor_part(args: tuple, kwargs: dict) -> XlaTensor:
    """``a.set_(b, offset, sizes, strides)``"""
    tensor, source, offset, sizes, *rest = args
    _same_kind(tensor, source)
    strides = tuple(rest[0]) if rest and rest[0] else torch.empty(tuple(sizes), device="meta").stride()
    return take(tensor, source._storage, layout(tuple(sizes), strides, offset, source.dtype), source)


def set_storage(args: tuple, kwargs: dict) -> XlaTensor:
    """``a.set_(storage, offset, sizes, strides)`` with what ``untyped_storage()`` gave."""
    tensor, handle = args[0], args[1]
    storage = _handles.get(handle.data_ptr())
    if storage is None or handle.device.type != "xla":
        raise RuntimeError("set_: this is not the storage of a living xla tensor. Move the data with .to('xla') instead")
    if len(args) > 2:
        offset, sizes = args[2], tuple(args[3])
        strides = tuple(args[4]) if len(args) > 4 and args[4] else torch.empty(sizes, device="meta").stride()
    else:
        offset, sizes, strides = 0, (storage.layout.numel * storage.layout.dtype.itemsize // tensor.dtype.itemsize,), (1,)
    return take(tensor, storage, layout(sizes, strides, offset, tensor.dtype), None)


def _same_kind(tensor: XlaTensor, source: Any) -> None:
    if not isinstance(source, XlaTensor) or source.dtype is not tensor.dtype or source.device != tensor.device:
        raise RuntimeError(
            f"Could not set tensor of type {tensor.dtype} on {tensor.device} to a tensor of type {source.dtype} on {source.device}"
        )


_handles: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()


def storage_handle(tensor: XlaTensor) -> torch.UntypedStorage:
    """A PyTorch storage object that stands for ours: its size and identity are right, its address must not be read."""
    storage = tensor._storage
    _handles[id(storage)] = storage
    nbytes = storage.layout.numel * storage.layout.dtype.itemsize
    return _compat.storage_at(id(storage), tensor.device, nbytes)
