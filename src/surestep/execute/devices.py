"""The devices that JAX drives. JAX starts here, at the first use of a device, not at import.

``PJRT_DEVICE`` (CPU, CUDA, TPU, ...) chooses the platform as torch_xla's scripts expect, else JAX's own default holds; ``CPU_NUM_DEVICES``
gives several virtual CPU devices in one process.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from surestep.execute import cache, memory
from surestep.execute.world import replica, settle_spmd

if TYPE_CHECKING:
    import jax

before_start: list[Callable[[], None]] = []  # called once, before JAX starts: the processes of a world find each other

_PLATFORMS = {"CPU": "cpu", "CUDA": "gpu", "GPU": "gpu", "ROCM": "rocm", "TPU": "tpu"}


def _platform() -> str | None:
    asked = os.environ.get("PJRT_DEVICE")
    return None if not asked else _PLATFORMS.get(asked.upper(), asked.lower())


def _is_cpu(platform: str | None) -> bool:
    """Whether JAX will drive the CPU, as far as that can be known before it starts: else it has a plugin for another platform."""
    import jax

    asked = platform or getattr(jax.config, "jax_platforms")  # noqa: B009 (its attributes are made at run time)
    if asked:
        return asked == "cpu"
    return not entry_points(group="jax_plugins") and find_spec("libtpu") is None


@functools.cache
def jax_devices() -> tuple[jax.Device, ...]:
    """This process's devices, in order; starts JAX. ``RuntimeError`` where ``PJRT_DEVICE`` or ``CPU_NUM_DEVICES`` can't be had."""
    if _forked:
        raise RuntimeError(FORKED)
    import jax

    cache.enable()
    settle_spmd()
    for prepare in before_start:
        prepare()
    count = _asked_of_cpu() if replica().size == 1 else 1
    if count:
        known = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 (its attributes are made at run time)
        if known < 1:  # the user's own setting, if there is one, wins
            jax.config.update("jax_num_cpu_devices", count)
    platform = _platform()
    if _is_cpu(platform):
        memory.keep()
    try:
        found = tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        if platform is None:
            raise
        raise RuntimeError(
            f"PJRT_DEVICE={os.environ['PJRT_DEVICE']}: JAX has no such device here ({error}). Unset PJRT_DEVICE to use JAX's default, "
            f"or install the JAX plugin for it."
        ) from error
    os.register_at_fork(after_in_child=_forget)
    return found


def started() -> bool:
    """Whether JAX was started here."""
    return bool(jax_devices.cache_info().currsize)


FORKED = (
    "the xla device can't be used in a forked process: JAX was started in the parent. Move batches to the device in the main "
    "process (MpDeviceLoader does), or start workers with multiprocessing_context='spawn'."
)
_forked = False


def _forget() -> None:
    """In a forked child, which has none of JAX's threads: what it asks of JAX would never end."""
    global _forked
    _forked = True
    jax_devices.cache_clear()


def device_kind() -> str:
    """``CPU``, ``CUDA``, ``TPU``, ...: torch_xla's names for the platform in use. Starts JAX where that can't be known without."""
    if not started() and _is_cpu(_platform()):
        return "CPU"
    platform = jax_devices()[0].platform.upper()
    return "CUDA" if platform == "GPU" else platform


def for_processes() -> int:
    """For how many processes this machine has devices: on the CPU, as many as CPU_NUM_DEVICES says, else 1."""
    found = 0 if _is_cpu(_platform()) else _counted_apart()
    return found or _asked_of_cpu() or 1


def _asked_of_cpu() -> int:
    """What CPU_NUM_DEVICES says, 0 where it isn't set."""
    count = os.environ.get("CPU_NUM_DEVICES")
    if not count:
        return 0
    if not count.isdigit() or int(count) < 1:
        raise RuntimeError(f"CPU_NUM_DEVICES={count!r}: expected a positive number of virtual CPU devices")
    return int(count)


@functools.cache
def _counted_apart() -> int:
    """How many devices JAX finds that aren't the CPU's. Asked in another process: JAX must not start in the one that starts others."""
    counted = "from surestep.execute.devices import jax_devices as d; print(int(d()[0].platform != 'cpu') and len(d()))"
    found = subprocess.run([sys.executable, "-c", counted], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[-1])
