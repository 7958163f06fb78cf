"""torch_xla.runtime (`xr`): what this process runs on, and where it stands among the others."""

from __future__ import annotations

import os
from typing import Any

import torch

from surestep._device import device_count as addressable_device_count
from surestep.execute import spmd
from surestep.execute.devices import device_kind, jax_devices, started
from surestep.execute.world import is_spmd, replica, world
from surestep.tensor import devices
from surestep.torch_xla import _later
from surestep.torch_xla.core._machine import xla_device

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "get_num_cached_compilation_graph",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_attributes",
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
    "use_spmd",
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
    if started() and pjrt_device.upper() != device_kind():
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the device is in use already, as {device_kind()}. "
            f"Call it before anything is put on the device"
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def world_size() -> int:
    """How many processes train together, one a device; under SPMD one program has all devices, so 1."""
    return replica().size


def global_ordinal() -> int:
    """Which of them this is."""
    return replica().rank


def local_ordinal() -> int:
    """Which of this host's this is."""
    return replica().local_rank


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
    """How many xla devices all processes have."""
    return replica().size if replica().size > 1 else addressable_device_count()


def global_runtime_device_count() -> int:
    """How many real devices all processes have."""
    return len(spmd.all_devices()) if is_spmd() else global_device_count()


def local_device_count() -> int:
    """How many xla devices the processes of this host have."""
    return replica().local_size if replica().size > 1 else addressable_device_count()


def addressable_runtime_device_count() -> int:
    """How many real devices this process has."""
    return len(jax_devices()) if is_spmd() else addressable_device_count()


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What JAX tells of each of the real devices of all processes."""
    return [_attributes(device) for device in spmd.all_devices()]


def use_spmd(auto: bool = False) -> None:
    """From now on `xla:0` stands for all devices: tensors are copied to each, or split as ``mark_sharding`` says; XLA splits the program.

    What was on `xla:0` before goes along. Call it at the start of the program. ``XLA_USE_SPMD=1`` does the same.

    Args:
        auto: XLA would choose the shardings; JAX gives no way to that.

    Raises:
        NotImplementedError: With ``auto``.
    """
    if auto:
        raise NotImplementedError(
            "use_spmd(auto=True): JAX gives no way to XLA's automatic sharding. Say how tensors lie, with mark_sharding"
        )
    devices.use_spmd()


def using_pjrt() -> bool:
    """Whether the runtime is PJRT: always."""
    return True


def is_bf16_supported() -> bool:
    """Whether bfloat16 tensors can be had: always."""
    return True


def runtime_device_attributes(device: torch.device | str) -> dict[str, Any]:
    """What JAX tells of a device."""
    return _attributes(jax_devices()[devices.index_of(device)])


def _attributes(found: Any) -> dict[str, Any]:
    told = {name: getattr(found, name) for name in ("coords", "core_on_chip", "slice_index") if getattr(found, name, None) is not None}
    return {
        "name": f"{device_kind()}:{spmd.positions()[found]}",
        "device_kind": found.device_kind,
        "process_index": found.process_index,
        **told,
    }


def get_num_cached_compilation_graph() -> int:
    """How many programs have been compiled since this process began, whatever was cleared of the metrics."""
    from surestep.execute import program  # imports JAX

    return program.built


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a directory (JAX's persistent compilation cache), from now on; with ``readonly``, only looks there."""
    import jax

    jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf") if readonly else 0.0)


__getattr__ = _later.getter("torch_xla.runtime")
