"""Boundaries: where what was recorded is run. Explicit ones are `sync` and the end of `step`; the end of `optimizer.step()` outside any
`step()` is one too, so that a loop which forgets them trains all the same.
"""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import ContextDecorator, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from surestep.observe import events, frames
from surestep.observe.events import Cause
from surestep.tensor import device_module, devices
from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor

_closures: list[Callable[[], Any]] = []
_asynchronous: list[Callable[[], Any]] = []
_lock = threading.Lock()
watched_closures: list[tuple[Callable[..., Any], tuple, bool]] | None = None  # who wants to know of them puts a list here


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Runs what has been recorded since the last boundary, as one program a device.

    Returns once the program is started; with ``wait=True``, once it has finished. ``reset_scope`` is accepted as torch_xla has it: source
    lines are kept for each operation, so there is no scope to reset.
    """
    boundary(Cause.SYNC)
    if wait:
        device_module.wait()


def boundary(cause: Cause) -> None:
    """Cuts the trace of every device, then runs the step closures that wait for it."""
    cut = [recorder.cut(cause) for recorder in devices.started()]
    if cut and not any(cut) and cause is not Cause.STEP_ENTRY:
        events.emit("nothing_pending", frames.user_line(), cause=cause)
    _run_closures()


class step(ContextDecorator):
    """One training step: what is recorded inside runs as one program when the block ends, also when it ends by an exception.

    Inside, ``optimizer.step()`` and ``xm.optimizer_step`` make no boundary of their own. A ``step()`` inside another is part of it.
    """

    def _recreate_cm(self) -> step:
        """As a decorator: one for each call, which may call itself."""
        return step()

    def __enter__(self) -> None:
        recorders = self.recorders = devices.recorders()
        outermost = True
        for recorder in recorders:
            if recorder.sealed is not None:
                recorder.sealed(Cause.STEP_ENTRY)
            if recorder.in_step:
                outermost = False
        if outermost:
            boundary(Cause.STEP_ENTRY)
        for recorder in recorders:
            recorder.in_step += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an exception the other processes are not where this one is: what is done together with them isn't begun.
        ends = True
        for recorder in self.recorders:
            recorder.in_step -= 1
            if recorder.in_step or (kind is not None and recorder.collectives):
                ends = False
        if ends:
            boundary(Cause.STEP)


@contextmanager
def within_a_step() -> Generator[None]:
    """An optimizer's step inside makes no boundary: more of the same step follows. Unlike ``step()`` this makes none itself."""
    recorders = devices.started()
    for recorder in recorders:
        recorder.in_step += 1
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.in_step -= 1


def in_step() -> bool:
    """Whether a ``step()`` is open."""
    return any(recorder.in_step for recorder in devices.started())


def add_step_closure(closure: Callable[..., Any], args: tuple = (), run_async: bool = False) -> None:
    """Calls ``closure(*args)`` at the next boundary, when the tensors in ``args`` have values: for printing and logging.

    With ``run_async`` it is called on another thread, one such closure after the other. What it raises there, the next boundary raises as
    a RuntimeError; after the last boundary, it is printed when the program ends.
    """
    if not callable(closure):
        raise TypeError(f"add_step_closure takes a function to be called later, and its arguments in args=; this is {closure!r}")
    with _lock:
        (_asynchronous if run_async else _closures).append(lambda: closure(*args))
    if watched_closures is not None:
        watched_closures.append((closure, args, run_async))


def at_next_boundary(function: Callable[[], Any]) -> None:
    """As a step closure, of which who watches doesn't hear: a replay does without it what it does."""
    with _lock:
        _closures.append(function)


def closures_wait() -> bool:
    """Whether step closures wait for the next boundary."""
    return bool(_closures or _asynchronous)


def _run_closures() -> None:
    if not _closures and not _asynchronous and not _failed:
        return
    with _lock:
        now, later = _closures[:], _asynchronous[:]
        _closures.clear()
        _asynchronous.clear()
    if _failed:
        error = _failed.pop(0)
        raise RuntimeError(f"a step closure that ran on another thread has failed: {type(error).__name__}: {error}") from error
    if later:
        _worker().submit(_run_asynchronous, later)
    for closure in now:
        closure()


_failed: list[Exception] = []  # what closures on the other thread have raised, and no boundary yet
_executor: list[Any] = []


def _run_asynchronous(closures: list[Callable[[], Any]]) -> None:
    try:
        for closure in closures:
            closure()
    except Exception as error:
        _failed.append(error)


def _worker() -> Any:
    if not _executor:
        from concurrent.futures import ThreadPoolExecutor

        _executor.append(ThreadPoolExecutor(1, thread_name_prefix="surestep closures"))
        atexit.register(_tell_failed)  # runs when the executor's thread has ended
    return _executor[0]


def _tell_failed() -> None:
    for error in _failed:
        sys.stderr.write("surestep: a step closure that ran on another thread has failed:\n")
        traceback.print_exception(error)


def _after_optimizer_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not in_step() and any(type(p) is XlaTensor for group in optimizer.param_groups for p in group["params"]):
        boundary(Cause.OPTIMIZER_STEP)


def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_optimizer_step)


at_first_use(_watch_optimizers)
