"""torch_xla.runtime (`xr`): what this process runs on, and where it stands among the others."""

from __future__ import annotations

import os
from typing import Any

import torch

from surestep._device import device_count as addressable_device_count
from surestep._device import device_count as addressable_runtime_device_count
from surestep.execute.devices import device_kind, jax_devices
from surestep.execute.world import world
from surestep.observe.metrics import metrics
from surestep.tensor.devices import index_of
from surestep.torch_xla import _later
from surestep.torch_xla.core._machine import xla_device

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "get_num_cached_compilation_graph",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_count",
    "host_index",
    "initialize_cache",
    "is_bf16_supported",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "runtime_device_attributes",
    "set_device_type",
    "using_pjrt",
    "world_size",
    "xla_device",
]


def device_type() -> str:
    """``CPU``, ``CUDA``, ``TPU``: what PJRT_DEVICE says, else what JAX has found, which starts JAX."""
    asked = os.environ.get("PJRT_DEVICE")
    return asked.split("_")[0].upper() if asked else device_kind()


def set_device_type(pjrt_device: str) -> None:
    """Chooses the platform (sets PJRT_DEVICE), before the device is first used."""
    if jax_devices.cache_info().currsize and pjrt_device.upper() != device_kind():
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the device is in use already, as {device_kind()}. "
            f"Call it before anything is put on the device"
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def world_size() -> int:
    """How many processes train together, one a device."""
    return world().size


def global_ordinal() -> int:
    """Which of them this is."""
    return world().rank


def local_ordinal() -> int:
    """Which of this host's this is."""
    return world().local_rank


def process_count() -> int:
    """How many processes there are."""
    return world().size


def local_process_count() -> int:
    """How many processes there are on this host."""
    return world().local_size


def process_index() -> int:
    """Which process this is."""
    return world().rank


def host_index() -> int:
    """Which host this is."""
    return world().rank // world().local_size


def global_device_count() -> int:
    """How many devices all processes have."""
    return world().size if world().size > 1 else local_device_count()


def global_runtime_device_count() -> int:
    """How many devices all processes have."""
    return global_device_count()


def local_device_count() -> int:
    """How many devices the processes of this host have."""
    return world().local_size if world().size > 1 else addressable_device_count()


def is_spmd() -> bool:
    """Whether tensors are sharded over several devices: not yet."""
    return False


def using_pjrt() -> bool:
    """Whether the runtime is PJRT: always."""
    return True


def is_bf16_supported() -> bool:
    """Whether bfloat16 tensors can be had: always."""
    return True


def runtime_device_attributes(device: torch.device | str) -> dict[str, Any]:
    """What JAX tells of a device."""
    found = jax_devices()[index_of(device)]
    return {
        "name": f"{device_kind()}:{found.local_hardware_id or 0}",
        "device_kind": found.device_kind,
        "process_index": found.process_index,
    }


def get_num_cached_compilation_graph() -> int:
    """How many programs have been compiled."""
    return metrics().compile.count


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a directory (JAX's persistent compilation cache), from now on; with ``readonly``, only looks there."""
    import jax

    jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf") if readonly else 0.0)


__getattr__ = _later.getter("torch_xla.runtime")
