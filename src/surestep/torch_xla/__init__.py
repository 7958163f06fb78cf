"""The drop-in for torch_xla 2.9: its module and function names, answered by surestep. `surestep run` puts it in torch_xla's place.

Thin re-exports, for one process a device. What torch_xla has and this hasn't yet is an error that names it.
"""

from surestep._device import device, device_count, devices, manual_seed, real_devices
from surestep.loop.boundaries import step, sync
from surestep.parallel.launcher import launch
from surestep.replay.compiled import compile
from surestep.replay.scope import set_custom_compile_options
from surestep.tensor import process
from surestep.torch_xla import _environment, _later
from surestep.torch_xla.core import xla_model as xm
from surestep.torch_xla.version import __version__

experimental_compile = compile  # its first name

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "experimental_compile",
    "launch",
    "manual_seed",
    "real_devices",
    "set_custom_compile_options",
    "step",
    "sync",
    "xm",
]

__getattr__ = _later.getter("torch_xla")

_environment.warn()
process.at_first_use(_environment.warn)
