"""surestep: train PyTorch models on XLA, from plain loops. Importing it gives PyTorch an `xla` device, and changes nothing else.

What is imported from here is loaded when it is first asked for: the device's first use starts JAX, not this import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surestep import settings as _settings
from surestep._device import device, device_count, devices, manual_seed, real_devices
from surestep.execute.devices import before_start as _before_start
from surestep.observe import advice as _advice  # noqa: F401 (listens from now on)
from surestep.observe.metrics import Metrics, clear_metrics, metrics
from surestep.tensor import process as _process
from surestep.tensor.generator import Generator

if TYPE_CHECKING:
    from surestep.loop.boundaries import add_step_closure, step, sync
    from surestep.loop.checkpoint import save
    from surestep.loop.loader import MpDeviceLoader
    from surestep.loop.optimizer import optimizer_step
    from surestep.parallel.launcher import launch
    from surestep.replay.compiled import compile
    from surestep.replay.explain import explain
    from surestep.replay.scope import GraphBreak
    from surestep.tensor.custom import lowering
    from surestep.tensor.host import FallbackError

__all__ = [
    "FallbackError",
    "Generator",
    "GraphBreak",
    "Metrics",
    "MpDeviceLoader",
    "add_step_closure",
    "clear_metrics",
    "compile",
    "device",
    "device_count",
    "devices",
    "explain",
    "launch",
    "lowering",
    "manual_seed",
    "metrics",
    "optimizer_step",
    "real_devices",
    "save",
    "step",
    "sync",
]

__version__ = "0.1.0"

_LATER = {
    "FallbackError": "surestep.tensor.host",
    "GraphBreak": "surestep.replay.scope",
    "MpDeviceLoader": "surestep.loop.loader",
    "add_step_closure": "surestep.loop.boundaries",
    "compile": "surestep.replay.compiled",
    "explain": "surestep.replay.explain",
    "launch": "surestep.parallel.launcher",
    "lowering": "surestep.tensor.custom",
    "optimizer_step": "surestep.loop.optimizer",
    "save": "surestep.loop.checkpoint",
    "step": "surestep.loop.boundaries",
    "sync": "surestep.loop.boundaries",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'surestep' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _connect() -> None:
    from surestep.parallel.connection import connect

    connect()


_settings.check()
_before_start.append(_connect)
_process.register()
_process.at_first_use(lambda: importlib.import_module("surestep.control.higher_order").register())
# The loop's hooks on optimizers are set when the device is first used, whatever was imported until then.
_process.at_first_use(
    lambda: [importlib.import_module(f"surestep.loop.{name}") for name in ("boundaries", "updates", "loaded", "averages", "drift")]
)
