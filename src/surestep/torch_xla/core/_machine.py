"""Devices by torch_xla's names, their random state and their memory."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypedDict

import torch

import surestep._device as _device
from surestep.execute.devices import device_kind, jax_devices
from surestep.execute.world import replica
from surestep.loop.boundaries import sync
from surestep.loop.nested import replaced
from surestep.tensor import device_module, generator
from surestep.tensor.devices import index_of

Device = torch.device | str | None


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The current xla device, or the ``n``-th."""
    if devkind is not None and not get_xla_supported_devices(devkind):
        raise RuntimeError(f"no {devkind} device: this process's are {_device.real_devices()}. PJRT_DEVICE={devkind} asks for others")
    return _device.device(n)


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str] | None:
    """``['xla:0', ...]``: this process's devices. None where they are of another kind than ``devkind`` (``CPU``, ``CUDA``, ``TPU``)."""
    real = _device.real_devices()
    if devkind is not None and not re.match(rf"{devkind}:\d+$", real[0]):
        return None
    return [f"xla:{index}" for index in range(len(real))][:max_devices]


def xla_real_devices(devices: list[torch.device | str] | None = None) -> list[str]:
    """``['CPU:0', ...]``: what the xla devices are."""
    real = _device.real_devices()
    return real if not devices else [real[index_of(device)] for device in devices]


def xla_device_hw(device: Device) -> str:
    """``CPU``, ``CUDA``, ``TPU``: what kind of device it is."""
    return xla_real_devices([device])[0].split(":")[0] if device is not None else _device.real_devices()[0].split(":")[0]


def xla_device_kind(device: Device = None) -> str:
    """What the device calls itself: ``cpu``, ``TPU v4``, ``NVIDIA H200``."""
    return jax_devices()[index_of(device)].device_kind


def xla_replication_devices(local_devices: list[torch.device | str] | None = None) -> list[str]:
    """``['CPU:0', 'CPU:1', ...]``: the devices of all processes, which replicate each other.

    Raises:
        RuntimeError: ``local_devices`` aren't all of this process.
    """
    real = _device.real_devices()
    if local_devices is not None and len(local_devices) != len(real):
        raise RuntimeError(f"xla_replication_devices: {len(local_devices)} devices, and this process has {len(real)}: {real}")
    return all_devices()


def all_devices() -> list[str]:
    """The devices of all processes, by their kind."""
    return [f"{device_kind()}:{index}" for index in range(replica().size * _device.device_count())]


def parse_xla_device(device: str) -> tuple[str, int] | None:
    """``('CPU', 0)`` for ``'CPU:0'``."""
    match = re.match(r"([A-Z]+):(\d+)$", device)
    return (match[1], int(match[2])) if match else None


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on an xla device."""
    return tensor.device.type == "xla"


def set_replication(device: Device, devices: list[Any]) -> None:
    """Which devices are replicas of each other: all processes', which it is without this call too; or this one."""
    if len(devices) not in (0, 1, replica().size):
        raise NotImplementedError(
            f"set_replication over {len(devices)} devices: replicas are one process each, and there are {replica().size}. Leave it out."
        )


def wait_device_ops(devices: list[str] | None = None) -> None:
    """Waits until the devices have done all that was given to them."""
    device_module.wait()


def unlazy(tensors: list[torch.Tensor]) -> None:
    """Makes a boundary and waits until it has run."""
    sync(wait=True)


def optimization_barrier_(tensors: list[torch.Tensor]) -> None:
    """Keeps XLA from moving computations across. Values are the same without it, and it isn't part of the program here."""


def set_rng_state(seed: int, device: Device = None) -> None:
    """Goes on from a state that ``get_rng_state`` gave; a seed is the state at its beginning."""
    found = generator.default(index_of(device))
    if 0 <= seed < 1 << 64:
        found.manual_seed(seed)
    else:
        found.set_state(torch.tensor(list(seed.to_bytes(16, "little")), dtype=torch.uint8))


def get_rng_state(device: Device = None) -> int:
    """Where the device's random numbers are, as one integer: the seed, and above its 64 bits how many draws it has seen."""
    return int.from_bytes(bytes(generator.default(index_of(device)).get_state().tolist()), "little")


@contextmanager
def fork_rng(device: Device = None, enabled: bool = True) -> Generator[None, None, None]:
    """Puts the random state back at the end of the block."""
    before = get_rng_state(device)
    try:
        yield
    finally:
        if enabled:
            set_rng_state(before, device)


def check_view_sharing(obj: Any) -> None:
    """RuntimeError if two tensors, in any nesting of Python objects, share their memory."""
    seen: dict[int, torch.Tensor] = {}

    def look(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        other = seen.setdefault(storage.data_ptr(), tensor) if storage.nbytes() else tensor
        if other is not tensor:
            raise RuntimeError(f"two tensors share their memory: one of shape {list(other.shape)}, and one of shape {list(tensor.shape)}")
        return tensor

    replaced(obj, look)


class MemoryInfo(TypedDict):
    """Bytes on a device."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int


def get_memory_info(device: Device = None) -> MemoryInfo:
    """How much of the device's memory is in use. On the CPU, whose allocator doesn't tell, living arrays are counted, and the limit is
    the machine's memory.
    """
    index = index_of(device)
    stats = device_module.memory_stats(index)
    used = device_module.memory_allocated(index)
    limit = stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MemoryInfo(bytes_used=used, bytes_limit=limit, peak_bytes_used=stats.get("peak_bytes_in_use", used))
