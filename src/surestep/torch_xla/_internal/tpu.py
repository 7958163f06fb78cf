"""torch_xla._internal.tpu: whether there are TPUs here, and which."""

from __future__ import annotations

import re

from surestep.execute.devices import device_kind, jax_devices
from surestep.parallel import launcher
from surestep.torch_xla import _later

__all__ = ["num_available_chips", "num_available_devices", "version"]


def num_available_devices() -> int:
    """For how many processes this machine has devices, of whatever kind: libraries (Lightning) ask this for whether they can use XLA.

    JAX doesn't start in this process.
    """
    return launcher.device_count()


def num_available_chips() -> int:
    """How many TPU chips this process has; older ones have two devices each."""
    return len({getattr(device, "coords", device.id) for device in jax_devices()}) if device_kind() == "TPU" else 0


def version() -> int:
    """Which generation of TPU this is: 4 for ``TPU v4``."""
    match = re.search(r"v(\d+)", jax_devices()[0].device_kind) if device_kind() == "TPU" else None
    if match is None:
        raise RuntimeError(f"no TPU here: JAX's devices are {device_kind()} ({jax_devices()[0].device_kind}). PJRT_DEVICE=TPU asks for one")
    return int(match[1])


__getattr__ = _later.getter("torch_xla._internal.tpu")
