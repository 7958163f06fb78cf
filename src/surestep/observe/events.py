"""One stream of events; counters, the summary, metrics and warnings are its listeners.

An event is a name and plain data. ``emit`` costs one loop over the listeners. A listener that raises is dropped and
logged: an observer must never break the program it watches.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from surestep.observe.frames import Line

log = logging.getLogger("surestep")


class Cause(enum.Enum):
    """Why a trace was cut. The explicit ones are what the user wrote."""

    SYNC = "sync"
    STEP = "end of step()"
    STEP_ENTRY = "start of step()"
    LOADER = "loader's next batch"
    CLOSURE = "end of a compiled function"
    EAGER = "eager mode"
    REPLICAS = "the replicas were compared"
    OPTIMIZER_STEP = "end of optimizer.step()"
    VALUE = "a value was read"
    PRINT = "a tensor was printed"
    FALLBACK = "an operation ran on the host"
    SHAPE = "a shape depends on values"
    TRANSFER = "a tensor went to another device"
    LIMIT = "too much was recorded"

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python, for each event that is counted

    @property
    def implicit(self) -> bool:
        """Whether the user didn't write this boundary: such ones are counted with their lines, and advised against."""
        return self not in _WRITTEN


_WRITTEN = frozenset((Cause.SYNC, Cause.STEP, Cause.STEP_ENTRY, Cause.LOADER, Cause.CLOSURE, Cause.EAGER, Cause.REPLICAS))


class Event(NamedTuple):
    """What listeners are told: the name says which ``data`` there is (``emit`` lists the names); no line where no user's code led here."""

    name: str
    line: Line | None
    data: dict[str, Any]


Listener = Callable[[Event], None]
_listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()


def listen(listener: Listener) -> Callable[[], None]:
    """Calls ``listener`` with every event from now on; returns the function that ends it."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)

    return lambda: _drop(listener)


def _drop(listener: Listener) -> None:
    global _listeners
    with _lock:
        left = list(_listeners)
        if listener in left:
            left.remove(listener)
        _listeners = tuple(left)


def emit(name: str, line: Line | None = None, **data: Any) -> None:
    """Tells all listeners.

    Names in use: boundary, nothing_pending, compile, transfer_in, transfer_out, fallback, lifted, evicted, replay, not_replayed,
    connected.
    """
    event = Event(name, line, data)
    for listener in _listeners:
        try:
            listener(event)
        except Exception:  # whatever an observer raises, the program goes on without it
            log.exception("a listener to surestep's events raised and is dropped")
            _drop(listener)
