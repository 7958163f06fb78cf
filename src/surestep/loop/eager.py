"""Eager mode: each operation runs at once, as a program of its own that is compiled once. Inside ``step()`` and compiled functions
operations are recorded as ever.

Outside of this mode it costs nothing: the handlers of operations are others while it is on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from surestep.observe.events import Cause
from surestep.tensor import devices, xla_tensor

_on = False
_found = xla_tensor.handler_of


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off for the process. What is pending when it is turned on is run first.

    For looking closely, and for code whose every operation is another. A program an operation costs tens of microseconds, so that a
    training step is put into ``step()`` or ``compile()`` all the same.
    """
    global _on
    if enable == _on:
        return
    for recorder in devices.recorders():
        recorder.cut(Cause.EAGER)
    _on = enable
    xla_tensor.HANDLERS.clear()
    xla_tensor.handler_of = _eager_handler if enable else _found


def is_eager_mode() -> bool:
    """Whether eager mode is on."""
    return _on


@contextmanager
def eager_mode_context(enable: bool) -> Generator[None]:
    """Eager mode on or off for a block."""
    before = _on
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)


def _eager_handler(func: Any) -> Callable[[tuple, dict], Any]:
    """The operation's handler, and a boundary after it."""
    recorded = _found(func)

    def run(args: tuple, kwargs: dict) -> Any:
        result = recorded(args, kwargs)
        for recorder in devices.started():
            if recorder.count and not recorder.in_step:
                recorder.cut(Cause.EAGER)
        return result

    xla_tensor.HANDLERS[id(func)] = run
    return run
