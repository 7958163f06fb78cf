"""What changes which storage a tensor has, or how large that is: ``set_``, ``resize_``, ``.data =``, ``out=`` of another size."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from surestep import _compat
from surestep.execute import transfer
from surestep.tensor.devices import recorder
from surestep.tensor.record import empty_storage
from surestep.tensor.xla_tensor import DEVICES, XlaTensor, _data, alias, refresh
from surestep.trace.layout import Layout, flat, layout, of_tensor
from surestep.trace.operands import ref
from surestep.trace.recorder import LOCK
from surestep.trace.storage import Storage

_aten = torch.ops.aten


def set_data(tensor: XlaTensor, value: torch.Tensor) -> None:
    """``tensor.data = value``: the tensor has value's storage from now on, autograd sees nothing."""
    if not isinstance(value, XlaTensor):
        raise RuntimeError(
            f"Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have incompatible tensor type: an xla tensor "
            f"can't take the data of one on {value.device}. Write tensor.data = value.to(tensor.device), or tensor.copy_(value) under "
            f"torch.no_grad()."
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
            f"An output with one or more elements was resized since it had shape {list(tensor._layout.sizes)}, which does not match the "
            f"required output shape {list(wanted.sizes)}. This behavior is deprecated, and in a future PyTorch release outputs will not be "
            f"resized unless they have zero elements.",
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
    if storage.unwritten:
        storage.lie_as(new)
        return True
    trace = storage.trace
    as_row = flat(old.numel, old.dtype)
    row = trace.read(storage, as_row)
    grown = Storage(trace, new)
    trace.write(grown, as_row, row)
    storage.lie_as(new)
    trace.define(storage, ref(grown.ref.index))
    return True


def resize_(args: tuple, kwargs: dict) -> XlaTensor:
    """``tensor.resize_(size, memory_format=)``; nothing where the tensor has that size already."""
    tensor, size = args[0], args[1]
    memory_format = kwargs.get("memory_format")
    if tuple(size) == tuple(tensor._layout.sizes) and memory_format in (None, torch.contiguous_format):
        return tensor  # the strides stay too
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
    """``a.set_(storage, offset, sizes, strides)`` with what ``untyped_storage()`` or ``torch.load`` gave."""
    tensor, handle = args[0], args[1]
    storage = _behind(handle, tensor.dtype)
    if len(args) > 2:
        offset, sizes = args[2], tuple(args[3])
        strides = tuple(args[4]) if len(args) > 4 and args[4] else torch.empty(sizes, device="meta").stride()
    else:
        offset, sizes, strides = 0, (storage.layout.numel * storage.layout.dtype.itemsize // tensor.dtype.itemsize,), (1,)
    wanted = layout(sizes, strides, offset, tensor.dtype)
    old = storage.layout
    if (
        storage.serial == 0
        and storage.array is not None
        and wanted.dense
        and wanted.numel == old.numel
        and wanted.dtype == old.dtype
        and old.contiguous
        and wanted.contiguous
    ):
        storage.array = storage.array.reshape(tuple(sizes))  # just loaded: lies as its first tensor does
        storage.lie_as(wanted)
    return take(tensor, storage, wanted, None)


def _same_kind(tensor: XlaTensor, source: Any) -> None:
    if not isinstance(source, XlaTensor) or source.dtype is not tensor.dtype or source.device != tensor.device:
        raise RuntimeError(
            f"Could not set tensor of type {tensor.dtype} on {tensor.device} to a tensor of type {source.dtype} on {source.device}"
        )


# PyTorch's storage objects that stand for ours. Nobody reads their address: it is the identity of our storage.
_handles: weakref.WeakKeyDictionary[Storage, torch.UntypedStorage] = weakref.WeakKeyDictionary()
_storages: weakref.WeakValueDictionary[int, Storage] = weakref.WeakValueDictionary()
_loaded: dict[int, tuple[torch.UntypedStorage, torch.device, dict]] = {}


def storage_handle(tensor: XlaTensor) -> torch.UntypedStorage:
    """A PyTorch storage object that stands for ours: its size, device and identity are right, its address must not be read."""
    return _handle(tensor._storage)


def _handle(storage: Storage) -> torch.UntypedStorage:
    nbytes = storage.layout.numel * storage.layout.dtype.itemsize
    found = _handles.get(storage)
    if found is None or found.nbytes() != nbytes:
        found = _handles[storage] = _compat.storage_at(id(storage), DEVICES[storage.trace.device], nbytes)
        _storages[id(storage)] = storage
    return found


def loaded_handle(data: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """A handle for bytes that ``torch.load`` has read: they go to the device with the first tensor over them, when their dtype is known."""
    handle = _compat.storage_at(data.data_ptr(), torch.device("xla", recorder(device).device), data.nbytes())
    _loaded[data.data_ptr()] = (data, device, {})
    weakref.finalize(handle, _loaded.pop, data.data_ptr(), None)
    return handle


def _behind(handle: Any, dtype: torch.dtype) -> Storage:
    """The storage that a handle stands for."""
    if handle.device.type == "xla":
        address = handle.data_ptr()
        if address in _loaded:
            data, device, made = _loaded[address]
            if dtype not in made:
                values = torch.empty(0, dtype=dtype).set_(data)
                where = recorder(device)
                made[dtype] = Storage(where, flat(values.numel(), dtype), transfer.to_device(values, where.device))
            return made[dtype]
        storage = _storages.get(address)
        if storage is not None:
            return storage
    raise RuntimeError("set_: this is not the storage of a living xla tensor. Move the data with .to('xla') instead")


def behind(tensor: torch.Tensor) -> XlaTensor:
    """What a plain PyTorch tensor over one of our handles stands for: C++ makes such tensors to copy a storage (``torch.save`` does)."""
    storage = _behind(tensor.untyped_storage(), tensor.dtype)
    return alias(storage, of_tensor(tensor), None)
