"""Ctrl-C at the wrong moment. An exception that a signal handler raises comes out of whatever Python line the main thread is at, and two
places must not be left half done:

* JAX at work on a program: what it has built so far would be freed under XLA's own threads, which then crash the process. So it works on a
  thread of its own (signals are handled on the main one), and an interrupt only ends the waiting for it.
* The moment in which a program takes over the memory of its inputs and gives its outputs. There a signal is held back until it is over.

And one that PyTorch's C++ must not see: an interrupt inside the Python that it calls for an operation. It ends the process where the C++ in
between can't throw. So a signal that finds the main thread there comes again a little later, as for an operation of the CPU, which no
signal interrupts.

For both, the handlers of the usual signals are wrapped once, and looked after at each boundary: one that the program sets later is wrapped
then. Nothing is to be undone, so that no exception, at whatever line, can leave a handler out.
"""

from __future__ import annotations

# `signal` turns each number into an enum, which costs more than the rest: this runs at every boundary.
import _signal  # type: ignore[missing-import]  # CPython's, without a stub
import contextvars
import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_worker: list[ThreadPoolExecutor] = []
_main = threading.main_thread()


def start(work: Callable[[], T]) -> Future[T]:
    """``work()`` on the worker thread. On another thread than the main one, which no signal interrupts, it runs in place, at once."""
    if threading.current_thread() is not _main:
        return _in_place(work)
    if not _worker:
        _worker.append(ThreadPoolExecutor(1, thread_name_prefix="surestep compiler"))
    try:
        return _worker[0].submit(contextvars.copy_context().run, work)
    except RuntimeError:  # the interpreter ends, and has stopped such threads: an ``atexit`` handler uses the device
        return _in_place(work)


def _in_place(work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    done.set_result(work())
    return done


def apart(work: Callable[[], T]) -> T:
    """``work()`` on the worker thread; its result or exception."""
    return start(work).result()


_AGAIN = 0.005  # seconds
_SIGNALS = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]

# As if the signal came now: unlike os.kill, it leaves the handler to be called by the next line.
_set_off = ctypes.pythonapi.PyErr_SetInterruptEx


class _State:
    """Of the main thread, the only one on which handlers are called."""

    held = False  # in a block that no signal may leave half done
    caught: list[int] = []  # noqa: RUF012 (one for all: what came then, and is to be set off again)
    inside: Callable[[FrameType | None], bool] = lambda frame: False  # whether an exception at this place could meet C++ that can't throw


class Postponing:
    """A signal's handler, called a little later where an exception of it would do harm."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, FrameType | None], Any]):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler's call: the signal's number, and where the main thread is."""
        if _State.held:
            _State.caught.append(number)
        elif _State.inside(frame):
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            self.handler(number, frame)


def postpone(inside: Callable[[FrameType | None], bool]) -> None:
    """From now on a signal takes effect only where ``inside(frame)`` is false."""
    _State.inside = inside
    if threading.current_thread() is _main:
        _wrap()


def _wrap() -> None:
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if type(handler) is not Postponing and callable(handler):
            _signal.signal(number, Postponing(handler))


class Held:
    """``with Held():`` on the main thread, a signal that Python handles (Ctrl-C, a time-out's alarm) takes effect when the block ends."""

    __slots__ = ("outer",)

    def __enter__(self) -> None:
        self.outer = _State.held
        if threading.current_thread() is _main:
            _wrap()
            _State.held = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if threading.current_thread() is _main:
            _State.held = self.outer
            if _State.caught and not self.outer:
                # All are taken off and set off again without a line of Python in between, where the handler of one would lose the others.
                again = map(_State.caught.pop, repeat(0, len(_State.caught)))
                deque(map(_set_off, again), maxlen=0)
