"""Loaders that put batches on the device ahead of the loop, and make a boundary before each: `MpDeviceLoader` and what torch_xla builds
it from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from surestep.loop.boundaries import boundary, in_step
from surestep.loop.nested import is_tensor, replaced, replaced_items
from surestep.loop.prefetch import Buffer, fill
from surestep.observe.events import Cause
from surestep.parallel.mesh import ShardingSpec

InputSharding = ShardingSpec | Mapping[str, ShardingSpec | None] | None


def to_device(batch: Any, device: torch.device, input_sharding: InputSharding = None) -> Any:
    """The batch, any nesting of Python objects, with its CPU tensors on the device, split as ``ParallelLoader`` says."""
    if isinstance(input_sharding, Mapping):
        return _by_key(batch, device, input_sharding)

    def moved(value: Any) -> Any:
        if not is_tensor(value):
            return value.to(device)
        if value.device.type != "cpu":
            return value
        return value.to(device) if input_sharding is None else input_sharding.to_device(value)

    return replaced(batch, moved, is_tensor if input_sharding is not None else _can_move)


def _by_key(batch: Any, device: torch.device, input_sharding: Mapping[str, ShardingSpec | None]) -> Any:
    if not isinstance(batch, Mapping):
        raise ValueError(f"input_sharding has a spec for each key, and the batch is no dictionary but a {type(batch).__name__}")
    missing = [key for key in batch if key not in input_sharding]
    if missing:
        raise KeyError(f"input_sharding has no spec for the batch's keys {missing}: give one, or None where each device gets a copy")
    unknown = [key for key in input_sharding if key not in batch]
    if unknown:
        raise KeyError(f"input_sharding has specs for {unknown}, and the batch has the keys {list(batch)}: take them out, or spell them so")
    return replaced_items(batch, lambda key, value: to_device(value, device, input_sharding[key]))


def _can_move(value: Any) -> bool:
    """Tensors, and what knows best how to move itself: a PackedSequence, a tokenizer's BatchEncoding, a graph."""
    return is_tensor(value) or (not isinstance(value, type) and callable(getattr(value, "to", None)))


class ParallelLoader:
    """Reads a loader ahead, on a thread of its own, and deals its batches to devices in turn.

    The loader's iterator and its first batch are made on the caller's thread: the random numbers that shuffle the data are drawn there,
    at a point
    of the program that doesn't depend on timing.

    Args:
        cpu_loader: A ``DataLoader``, or anything to iterate over.
        devices: Where the batches go: the i-th to ``devices[i % len(devices)]``.
        batchdim: Accepted as torch_xla has it.
        batches_per_execution: How many batches there are between two boundaries.
        loader_prefetch_size: How many batches may wait; as torch_xla has it, beside ``device_prefetch_size``, of which the smaller counts
            here.
        device_prefetch_size: How many batches may wait on each device.
        host_to_device_transfer_threads: Accepted as torch_xla has it: one thread fetches and moves.
        input_sharding: Under SPMD, how tensors are split over the devices: one ``ShardingSpec``, for tensors with as many dimensions as it
            (each device gets a copy of the others); or, for batches that are dictionaries, one a key, or None.
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[torch.device | str],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: InputSharding = None,
    ):
        self._cpu_loader = cpu_loader
        self._devices = [torch.device(device) for device in devices]
        if batches_per_execution < 1:
            raise ValueError(f"batches_per_execution={batches_per_execution}: there is a boundary every so many batches, from 1 on")
        self._batches_per_execution = batches_per_execution
        size = max(1, min(loader_prefetch_size, device_prefetch_size))
        buffers = [Buffer(size) for _ in self._devices]
        self._buffers = dict(zip(self._devices, buffers, strict=True))
        # The thread holds the buffers, not this object: when the loop is left early and this object goes, the thread ends.
        self._end = weakref.finalize(self, _close, buffers)
        fill(_begun(cpu_loader), buffers, [partial(to_device, device=device, input_sharding=input_sharding) for device in self._devices])

    def per_device_loader(self, device: torch.device | str) -> PerDeviceLoader:
        """The batches of one device."""
        if torch.device(device) not in self._buffers:
            raise ValueError(f"per_device_loader({str(device)!r}): this ParallelLoader's batches go to {[str(d) for d in self._devices]}")
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """How many batches each device gets."""
        return len(self._cpu_loader) // len(self._devices)  # type: ignore[arg-type] (only asked of loaders that have a length)

    @property
    def batches_per_execution(self) -> int:
        """How many batches there are between two boundaries."""
        return self._batches_per_execution

    def next_item(self, device: torch.device) -> Any:
        """The device's next batch; None at the end."""
        try:
            return self._buffers[device].get()
        except StopIteration:
            return None

    def close(self) -> None:
        """Ends the reading thread."""
        self._end()


_END = object()


def _begun(loader: Iterable[Any]) -> Iterator[Any]:
    """The loader's batches, the first of which is fetched now. ``iter()`` is called once: to some loaders, again means anew."""
    iterator = iter(loader)
    first = next(iterator, _END)

    def batches() -> Iterator[Any]:
        batch = first
        while batch is not _END:
            yield batch
            batch = next(iterator, _END)

    return batches()


def _close(buffers: list[Buffer]) -> None:
    for buffer in buffers:
        buffer.close()


class PerDeviceLoader:
    """The batches of one device, with a boundary before each (or each N-th), and one at the end. Inside ``step()`` it makes none."""

    def __init__(self, loader: ParallelLoader, device: torch.device):
        self._loader = loader
        self._device = device
        self._every = loader.batches_per_execution
        self._given = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch."""
        due = self._given % self._every == 0
        if due:
            _boundary()
        batch = self._loader.next_item(self._device)
        if batch is None:
            if not due:
                _boundary()
            raise StopIteration
        self._given += 1
        return batch

    def close(self) -> None:
        """Ends the reading thread."""
        self._loader.close()


def _boundary() -> None:
    if not in_step():
        boundary(Cause.LOADER)


class MpDeviceLoader:
    """Wraps a ``DataLoader``: its batches come on the device, fetched and moved ahead, with a boundary before each.

    ``for batch in MpDeviceLoader(loader, device)`` therefore needs no ``sync()``. What the loader has besides (``dataset``,
    ``batch_size``, ``sampler``) is had here too.

    Args:
        loader: The ``DataLoader``, or anything to iterate over.
        device: Where the batches go.
        kwargs: Passed on to ``ParallelLoader``.
    """

    def __init__(self, loader: Any, device: torch.device | str, **kwargs: Any):
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        parallel = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return parallel.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet: a copy or an unpickled object asks before __init__ has run
            raise AttributeError(name)
        return getattr(self._loader, name)
