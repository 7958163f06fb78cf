"""What happens once in a process: at import, the device's registration; at the first use of the device, the rest."""

from __future__ import annotations

import os
import warnings
from types import FrameType
from typing import Any

import torch

from surestep import _compat
from surestep.execute import interrupts
from surestep.execute.devices import FORKED

_kept: list[Any] = []
# What Dynamo may trace: tensors that stand for the device's, and what says where a process and its devices are.
_TRACED = ("surestep.tensor.figures", "surestep.tensor.devices", "surestep.execute.world", "surestep._device", "surestep.torch_xla")


def register() -> None:
    """Registers the device with PyTorch. All that importing surestep changes is here:

    * a device guard in the xla slot of PyTorch's registry, which is empty without torch_xla;
    * kernels for PyTorch's XLA dispatch keys, which no other device reaches (AutocastXLA's follow at the first use);
    * the module ``torch.xla``, and one that hears ``torch.manual_seed``;
    * a location tag for ``torch.load``.
    """
    if _kept:
        return
    _kept.append(_compat.register_device_guard())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_boxed, "XLA")
    aten = torch.library.Library("aten", "IMPL")
    # torch.tensor(data, device="xla") copies with the Python key excluded, where a boxed fallback isn't asked
    aten.impl("copy_", _copy, "XLA")
    aten.impl("ctc_loss.Tensor", _ctc_loss, "AutogradXLA")  # before PyTorch takes it apart, in a way that needs all lengths on the device
    _kept.extend((everything, aten))
    from surestep.tensor import device_module

    _compat.register_device_module("xla", device_module)
    if not hasattr(torch, "privateuseone"):
        _compat.register_device_module("privateuseone", _seeds_follow())
    from surestep.tensor import pickling

    torch.serialization.register_package(19, pickling.tag, pickling.restore)


def _boxed(func: Any, *args: Any, **kwargs: Any) -> Any:
    from surestep.tensor.dispatch import boxed

    return boxed(func, *args, **kwargs)


def _ctc_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
    from surestep.tensor.ctc import reduced

    return reduced(args, kwargs)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    from surestep.tensor.copies import copy_

    return copy_((target, source), {})


def _seeds_follow() -> Any:
    """How the xla device hears of a seed without a patched ``torch.manual_seed``.

    That seeds the devices that PyTorch knows, and the one out-of-tree backend that it reserves a name for. Unless such a backend is there,
    this module stands for it.
    """
    from types import ModuleType

    from surestep.tensor import generator

    module = ModuleType("torch.privateuseone", "surestep: hears torch.manual_seed; no device of this name")
    vars(module).update(
        _is_in_bad_fork=lambda: False,
        is_available=lambda: False,
        device_count=lambda: 0,
        manual_seed_all=generator.seed_all,
    )
    return module


_first_use: list[Any] = []


def at_first_use(action: Any) -> None:
    """``action()`` is called when the device is first used; the loop's layer sets its hooks by it."""
    _first_use.append(action)


def first_use() -> None:
    """What must be in place before JAX starts: forks are watched, and those who asked with ``at_first_use`` are called."""
    os.register_at_fork(after_in_child=_forbid)
    # JAX warns of every fork, since its threads don't come along: here the child is told so if it uses the device, and a loader's workers
    # don't use it
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    interrupts.postpone(_in_an_operation)
    from surestep.tensor import autocast, bounds, host, linear, swaps
    from surestep.tensor.xla_tensor import XlaTensor

    _compat.trace_as_tensors(XlaTensor)
    _compat.keep_from_dynamo(("surestep", "jax", "jaxlib"), _TRACED)

    swaps.watch()
    _kept.append(host.register())
    _kept.extend(linear.register())
    if bounds.ENABLED:
        _kept.append(bounds.register())
    _kept.extend(autocast.register())  # some 30 ms, which an import need not take
    for action in _first_use:
        action()


def _in_an_operation(frame: FrameType | None) -> bool:
    from surestep.tensor.xla_tensor import XlaTensor

    if _compat.guard_is_asked():
        return True
    dispatch = XlaTensor.__torch_dispatch__.__func__.__code__  # type: ignore[attr-defined]  # a classmethod's function
    while frame is not None:
        # PyTorch's C++ calls its own Python too, on the way to ours, to look the operation up: the process ends if that raises.
        if frame.f_code is dispatch or _LOOKED_UP in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


_LOOKED_UP = os.path.join("torch", "_library", "")


def _forbid() -> None:
    """A forked child (a DataLoader's worker) has the parent's tensors but not JAX's threads: using the device there would hang."""
    from surestep.tensor import xla_tensor

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(FORKED)

    xla_tensor.HANDLERS.clear()
    xla_tensor.handler_of = lambda func: refuse
