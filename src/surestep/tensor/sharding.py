"""Under SPMD: how a tensor lies over the devices. It is said of a storage, which keeps it whatever is written there."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import torch

from surestep.execute import spmd, transfer
from surestep.execute.tiling import ShardingType, Tiling, tiling
from surestep.observe import frames
from surestep.observe.events import Cause
from surestep.tensor import host, record, unrepresented
from surestep.tensor.copies import replace
from surestep.tensor.devices import recorder
from surestep.tensor.xla_tensor import XlaTensor, fresh
from surestep.trace.marks import Mark
from surestep.trace.recorder import LOCK, in_parts
from surestep.trace.storage import Storage


@dataclasses.dataclass
class XLAShard:
    """What one device holds of a tensor, at the time when it was asked for.

    Attributes:
        data: A copy, on the CPU.
        indices: Where it lies in the whole tensor, a slice a dimension; ``...`` where each device has all of it.
        shard_device: ``'CPU:0'``, ...
        replica_id: Which of the copies of this part it is.
    """

    data: torch.Tensor
    indices: EllipsisType | list[slice]
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """``data``: parts are never padded here."""
        return self.data

    @unpadded_data.setter
    def unpadded_data(self, value: torch.Tensor) -> None:
        self.data.copy_(value)


def mark(tensor: XlaTensor, sharding: Any, noted: Mark | None = None) -> None:
    """From here on the tensor's value lies over the devices as the JAX sharding says; a whole storage's does so from now on.

    With ``noted``, a program that gathers it whole on each device is said.
    """
    storage, view = tensor._storage, tensor._layout
    with LOCK:
        trace = storage.trace
        if view is not storage.layout:
            _mark_view(tensor, sharding)
        elif storage.array is None and storage.lost is None:
            trace.constrain(storage, sharding)
        elif storage.serial == trace.serial and storage.array.sharding != sharding:
            _say_used(tensor)
            trace.constrain(storage, sharding)
        elif storage.array is not None:
            if storage.exported:
                trace.protect(storage.array)
            storage.array, storage.exported = spmd.placed(storage.array, sharding), False
        if view is storage.layout:
            storage.sharding, storage.mark = sharding, noted


def _mark_view(tensor: XlaTensor, sharding: Any) -> None:
    """Of a view that holds every element, the storage's value is changed; of a part, only what is read through this tensor."""
    storage, view = tensor._storage, tensor._layout
    trace = storage.trace
    value = trace.constrained(record.value_of(trace, tensor), sharding, record._dense(view.sizes, view.dtype))
    if view.dense and view.numel == storage.layout.numel and view.dtype is storage.layout.dtype:
        trace.write(storage, view, value)
    tensor._read = (trace.serial, trace.value(storage), value)


def upload(tensor: torch.Tensor, sharding: Any, own_part: bool = False) -> XlaTensor:
    """A CPU tensor as a new xla tensor that lies so over the devices; no device has ever more than its part.

    With ``own_part``, each process gives its own part of the whole.
    """
    unrepresented.check(tensor)
    array = transfer.to_devices(tensor, sharding, own_part)
    wanted = record._dense(torch.Size(array.shape), tensor.dtype)
    made = fresh(Storage(recorder(None), wanted, array))
    made._storage.sharding = sharding
    return made


_said: set[Any] = set()


def _say_used(tensor: XlaTensor) -> None:
    line = frames.user_line()
    if line not in _said:
        _said.add(line)
        warnings.warn(
            f"surestep: a tensor of shape {list(tensor.shape)} is sharded at {line} after it was used in the same program, which so holds "
            f"it twice. Mark it before its first use, or make a boundary (torch_xla.sync()) between them",
            stacklevel=4,
        )


def parted(tensor: XlaTensor, sharding: Any) -> XlaTensor:
    """A tensor that is on each device its part of this one."""
    return _made(tensor, "parted", sharding, sharding.shard_shape(tuple(tensor.shape)))


def joined(tensor: XlaTensor, sharding: Any, shape: Sequence[int]) -> XlaTensor:
    """The tensor of this shape of which each device has its part. ``RuntimeError`` where the parts don't make that up."""
    expected = sharding.shard_shape(tuple(shape))
    if tuple(tensor.shape) != expected:
        raise RuntimeError(
            f"disable_manual_sharding: the parts have the shape {list(tensor.shape)}, and those of {list(shape)} are {list(expected)}"
        )
    made = _made(tensor, "joined", sharding, shape)
    made._storage.sharding = sharding
    return made


def alike(first: XlaTensor, second: XlaTensor) -> tuple[XlaTensor, XlaTensor]:
    """Copies of two tensors of one shape, which lie over the devices in the same way, whichever XLA chooses, as do the two tensors."""
    with LOCK:
        trace = first._storage.trace
        layouts = tuple(record._dense(tensor.shape, tensor.dtype) for tensor in (first, second))
        values = trace.alike(tuple(record.value_of(trace, tensor) for tensor in (first, second)), layouts)
        made = [Storage(trace, layout) for layout in layouts]
        for storage, value in zip(made, values, strict=True):
            trace.define(storage, value)
        return fresh(made[0]), fresh(made[1])


def _made(tensor: XlaTensor, how: str, sharding: Any, shape: Sequence[int]) -> XlaTensor:
    with LOCK:
        trace = tensor._storage.trace
        made = Storage(trace, record._dense(torch.Size(shape), tensor.dtype))
        value = getattr(trace, how)(record.value_of(trace, tensor), sharding, made.layout)
        trace.define(made, value)
        return fresh(made)


def clear(tensor: XlaTensor) -> None:
    """Nothing is said of the tensor any more, and it lies on one device until it is used."""
    storage = tensor._storage
    with LOCK:
        storage.sharding = storage.mark = None
        host.concrete(storage, Cause.TRANSFER)
        if len(spmd.all_devices()) > 1 and len(storage.array.sharding.device_set) > 1:
            replace(storage, transfer.to_device(transfer.to_host(storage.array), storage.trace.device))


def tiling_of(tensor: XlaTensor) -> Tiling | None:
    """How the tensor lies over the devices: as was said, or as its last program left it; None where neither is so."""
    storage = tensor._storage
    if tensor._layout is not storage.layout:
        return None
    sharding = storage.sharding or (None if storage.array is None else storage.array.sharding)
    if sharding is None or len(sharding.device_set) < len(spmd.all_devices()):
        return None
    if storage.sharding is None and len(spmd.all_devices()) == 1:
        return None
    return tiling(sharding, tuple(storage.layout.sizes))


def _manual(tensor: XlaTensor) -> bool:
    """Whether each device has a part of its own, as is known once a program has run."""
    storage = tensor._storage
    return storage.array is not None and in_parts(storage)


def sharding_spec(tensor: XlaTensor) -> str:
    """As XLA writes it; empty where nothing is known of it."""
    if _manual(tensor):
        return "{manual}"
    found = tiling_of(tensor)
    return "" if found is None else str(found)


def sharding_type(tensor: XlaTensor) -> ShardingType | None:
    """The kind of sharding; None where nothing is known of it."""
    if _manual(tensor):
        return ShardingType.MANUAL
    found = tiling_of(tensor)
    return None if found is None else found.kind


def _array(tensor: XlaTensor) -> Any:
    if tensor._layout is not tensor._storage.layout:
        raise RuntimeError("this tensor is a view of another one: its shards are those of a copy. Write tensor.clone() first")
    with LOCK:
        storage = tensor._storage
        host.concrete(storage, Cause.VALUE)
        storage.array = spmd.placed(storage.array, storage.sharding)
        return storage.array


def local_shards(tensor: XlaTensor) -> list[XLAShard]:
    """What each of this process's devices holds, as copies on the CPU."""
    array = _array(tensor)
    shape = tuple(array.shape)
    found = tiling(array.sharding, shape)
    replicated = found.kind is ShardingType.REPLICATED
    shards = []
    for shard in sorted(array.addressable_shards, key=lambda shard: spmd.positions()[shard.device]):
        position = spmd.positions()[shard.device]
        indices = [
            slice(part.start or 0, size if part.stop is None else part.stop, 1) for part, size in zip(shard.index, shape, strict=True)
        ]
        shards.append(
            XLAShard(transfer.to_host(shard.data), ... if replicated else indices, _name(shard.device, position), found.replica(position))
        )
    return shards


def _name(device: Any, position: int) -> str:
    platform = device.platform.upper()
    return f"{'CUDA' if platform == 'GPU' else platform}:{position}"


def load_local_shards(tensor: XlaTensor, shards: Sequence[XLAShard]) -> None:
    """Puts new values where ``local_shards`` found the old ones. ``RuntimeError`` where they don't fit, ``TypeError`` for no shards."""
    if not all(isinstance(shard, XLAShard) for shard in shards):
        raise TypeError("load_local_shards_: expected a list of XLAShard, as local_shards gives it, with other values in each one's data")
    array = _array(tensor)
    found = tiling(array.sharding, tuple(array.shape))
    here = {_name(device, spmd.positions()[device]): device for device in array.sharding.addressable_devices}
    given = {shard.shard_device: shard.data for shard in shards}
    if found.kind is ShardingType.REPLICATED:
        raise RuntimeError("load_local_shards_: the tensor isn't split over the devices. Write tensor.copy_(values)")
    if given.keys() != here.keys():
        raise RuntimeError(f"load_local_shards_: shards for {sorted(given)}, expected one for each of {sorted(here)}")
    shape = array.sharding.shard_shape(tuple(array.shape))
    for name, data in given.items():
        if tuple(data.shape) != shape or data.dtype is not tensor.dtype:
            raise RuntimeError(
                f"load_local_shards_: the shard for {name} is {data.dtype}{list(data.shape)}, expected {tensor.dtype}{list(shape)}"
            )
    replace(tensor._storage, transfer.assembled(tuple(array.shape), array.sharding, {here[name]: data for name, data in given.items()}))
