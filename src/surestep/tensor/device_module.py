"""``torch.xla``: what PyTorch asks of any device's module."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from surestep.execute.devices import jax_devices
from surestep.observe.events import Cause
from surestep.tensor import devices, generator


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint keeps a device's random state only if it says so
        return is_initialized()
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")


def is_available() -> bool:
    """Always: JAX has a CPU device where there is nothing else. Asking doesn't start JAX."""
    return True


def is_initialized() -> bool:
    """Whether the device was used already; asking doesn't start it."""
    return bool(devices.started())


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """How many xla devices this process has; starts JAX."""
    return devices.device_count()


def current_device() -> int:
    """The index of the device that a plain ``"xla"`` means."""
    return devices.current()


def set_device(device: Any) -> None:
    """Says which device a plain ``"xla"`` means from now on: an index, a ``torch.device`` or its name."""
    devices.set_current(devices.index_of(device))


@contextmanager
def device(which: Any) -> Generator[None]:
    """Makes a device the current one for a block."""
    before = devices.current()
    set_device(which)
    try:
        yield
    finally:
        devices.set_current(before)


def synchronize(device: Any = None) -> None:
    """Runs what is pending and waits for the device."""
    if device is not None:
        devices.index_of(device)
    for recorder in devices.started():
        recorder.cut(Cause.SYNC)
    wait()


def wait() -> None:
    """Waits until the devices have done all that was given to them."""
    for recorder in devices.started():
        recorder.running.wait()


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; ``torch.manual_seed`` seeds those of all devices."""
    generator.default(devices.current()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator with the same number."""
    generator.seed_all(seed)


def seed() -> int:
    """Seeds the current device's generator at random; returns the seed."""
    return generator.default(devices.current()).seed()


def initial_seed() -> int:
    """The seed that the current device's generator started from."""
    return generator.default(devices.current()).initial_seed()


def get_rng_state(device: Any = "xla") -> torch.Tensor:
    """The state of a device's generator, a CPU tensor. Reading it makes no boundary."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "xla") -> None:
    """Lets a device's generator go on from a state that ``get_rng_state`` gave. Makes no boundary."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators, in the devices' order."""
    return [generator.default(index).get_state() for index in range(device_count())]


def set_rng_state_all(states: Any) -> None:
    """Lets every device's generator go on from its state in a list that ``get_rng_state_all`` gave."""
    for index, state in enumerate(states):
        generator.default(index).set_state(state)


def _generator(device: Any) -> generator.Generator:
    return generator.default(devices.index_of(device))


def memory_stats(device: Any = None) -> dict[str, int]:
    """What JAX knows of the device's memory, in bytes; empty where the platform doesn't tell (the CPU)."""
    return dict(jax_devices()[devices.index_of(device)].memory_stats() or {})


def memory_allocated(device: Any = None) -> int:
    """Bytes of living arrays on the device."""
    stats = memory_stats(device)
    if "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    import jax

    where = jax_devices()[devices.index_of(device)]
    arrays = (array for array in jax.live_arrays(where.platform) if where in array.devices())
    return sum(math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize for array in arrays)


def max_memory_allocated(device: Any = None) -> int:
    """Bytes of living arrays on the device when there were most of them, since the process began.

    ``RuntimeError`` where the platform doesn't count them (the CPU).
    """
    stats = memory_stats(device)
    if "peak_bytes_in_use" not in stats:
        kind = get_device_name(device)
        raise RuntimeError(
            f"torch.xla.max_memory_allocated: JAX counts no peak for {kind} devices. torch.xla.memory_allocated() gives what is there now, "
            f"and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss the process's peak"
        )
    return stats["peak_bytes_in_use"]


def get_device_name(device: Any = None) -> str:
    """What JAX calls the kind of device: ``"cpu"``, ``"NVIDIA H100 80GB HBM3"``, ``"TPU v4"``. Starts JAX."""
    return jax_devices()[devices.index_of(device)].device_kind


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("xla", dtype)`` accepts."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported() -> bool:
    """Always: XLA has bfloat16 on each platform, computed in float32 where the hardware has none."""
    return True


def empty_cache() -> None:
    """Nothing to do: XLA's allocator reuses memory by itself."""
