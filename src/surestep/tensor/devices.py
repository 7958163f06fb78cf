"""The recorders, one a device, made when the device is first used."""

from __future__ import annotations

import torch

from surestep.execute.devices import jax_devices
from surestep.trace.recorder import LOCK, Recorder

_recorders: list[Recorder] = []
_current = 0


def recorders() -> list[Recorder]:
    """One a device; starts JAX."""
    if not _recorders:
        with LOCK:
            if not _recorders:
                from surestep.tensor import process

                process.first_use()
                _recorders.extend(Recorder(index) for index in range(len(jax_devices())))
    return _recorders


def started() -> list[Recorder]:
    """The recorders if the device was used already, else none."""
    return _recorders


def recorder(device: torch.device | None) -> Recorder:
    """The recorder of 'xla' or 'xla:N'. ``RuntimeError`` where there is no such device, in PyTorch's words."""
    index = _current if device is None or device.index is None else device.index
    found = recorders()
    if not 0 <= index < len(found):
        raise RuntimeError(
            f"invalid device ordinal: xla:{index}. This process has {len(found)} xla device(s); "
            f"CPU_NUM_DEVICES=N gives N virtual ones on the CPU"
        )
    return found[index]


def current() -> int:
    """The index of the device that a plain 'xla' means."""
    return _current


def set_current(index: int) -> None:
    """A plain 'xla' means this device from now on. Starts JAX; ``RuntimeError`` where there is no such device."""
    global _current
    recorder(torch.device("xla", index))
    _current = index
