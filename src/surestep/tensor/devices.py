"""The recorders, one a device, made when the device is first used."""

from __future__ import annotations

from typing import Any

import torch

from surestep.execute.devices import jax_devices
from surestep.execute.world import is_spmd, settle_spmd
from surestep.observe.events import Cause
from surestep.trace.recorder import LOCK, Recorder

_recorders: list[Recorder] = []
_current = 0


def recorders() -> list[Recorder]:
    """One a device; starts JAX."""
    if not _recorders:
        with LOCK:
            if not _recorders:
                from surestep.tensor import bounds, process

                process.first_use()
                kind = bounds.CheckedRecorder if bounds.ENABLED else Recorder
                _recorders.extend(kind(index) for index in range(device_count()))
    return _recorders


def device_count() -> int:
    """How many xla devices this process has: under SPMD one, which stands for all. Starts JAX."""
    return 1 if is_spmd() else len(jax_devices())


def started() -> list[Recorder]:
    """The recorders if the device was used already, else none."""
    return _recorders


def recorder(device: torch.device | None) -> Recorder:
    """The recorder of 'xla' or 'xla:N'. ``RuntimeError`` where there is no such device, in PyTorch's words."""
    index = _current if device is None or device.index is None else device.index
    found = recorders()
    if not 0 <= index < len(found):
        raise _no_such_device(index, len(found))
    return found[index]


def use_spmd() -> None:
    """From now on `xla:0` stands for all devices. What was on it before goes along; there are no others any more."""
    with LOCK:
        for found in [] if is_spmd() else _recorders:
            found.cut(Cause.SYNC)
        settle_spmd(True)
        for found in _recorders[:1]:
            found.spread = True
        del _recorders[1:]


def index_of(device: Any) -> int:
    """The index of a device that is given as an index, a ``torch.device``, its name, or None for the current one.

    ``RuntimeError`` where there is no such device, in PyTorch's words; starts JAX.
    """
    if isinstance(device, int):
        index = device
    else:
        where = torch.device("xla" if device is None else device)
        if where.type != "xla":
            raise ValueError(f"Expected a xla device, but got: {where}")
        index = _current if where.index is None else where.index
    if not 0 <= index < device_count():
        raise _no_such_device(index, device_count())
    return index


def _no_such_device(index: int, count: int) -> RuntimeError:
    if is_spmd():
        return RuntimeError(f"invalid device ordinal: xla:{index}. Under SPMD there is one xla device, xla:0, which stands for all devices")
    return RuntimeError(
        f"invalid device ordinal: xla:{index}. This process has {count} xla device(s); CPU_NUM_DEVICES=N gives N virtual ones on the CPU"
    )


def current() -> int:
    """The index of the device that a plain 'xla' means."""
    return _current


def set_current(index: int) -> None:
    """A plain 'xla' means this device from now on. Starts JAX; ``RuntimeError`` where there is no such device."""
    global _current
    _current = index_of(index)
