"""Ctrl-C at the wrong moment. An exception that a signal handler raises comes out of whatever Python line the main thread is at, and two
places must not be left half done:

* JAX at work on a program: what it has built so far would be freed under XLA's own threads, which then crash the process. So it works on a
  thread of its own (signals are handled on the main one), and an interrupt only ends the waiting for it.
* The moment in which a program takes over the memory of its inputs and gives its outputs. There a signal is held back until it is over.

And one that PyTorch's C++ must not see: an interrupt inside the Python that it calls for an operation. It ends the process where the C++ in
between can't throw. So a Ctrl-C that finds the main thread there comes again a little later, as for an operation of the CPU, which no
signal interrupts.
"""

from __future__ import annotations

# `signal` turns each number into an enum, which costs more than the rest: this runs at every boundary.
import _signal  # type: ignore[missing-import]  # CPython's, without a stub
import contextvars
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_worker: list[ThreadPoolExecutor] = []
_main = threading.main_thread()


def start(work: Callable[[], T]) -> Future[T]:
    """``work()`` on the worker thread. On another thread than the main one, which no signal interrupts, it runs in place, at once."""
    if threading.current_thread() is not _main:
        done: Future[T] = Future()
        done.set_result(work())
        return done
    if not _worker:
        _worker.append(ThreadPoolExecutor(1, thread_name_prefix="surestep compiler"))
    return _worker[0].submit(contextvars.copy_context().run, work)


def apart(work: Callable[[], T]) -> T:
    """``work()`` on the worker thread; its result or exception."""
    return start(work).result()


_AGAIN = 0.005  # seconds


def postpone(inside: Callable[[FrameType | None], bool]) -> None:
    """From now on Ctrl-C takes effect only where ``inside(frame)`` is false; then the handler that was there before is called."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not _main or not callable(before):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if inside(frame):
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            before(number, frame)

    signal.signal(signal.SIGINT, handle)


_SIGNALS = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class Held:
    """``with Held():`` on the main thread, a signal that Python handles (Ctrl-C, a time-out's alarm) takes effect when the block ends."""

    __slots__ = ("before", "caught")

    def __enter__(self) -> None:
        self.before: list[tuple[int, Any]] = []
        self.caught: list[tuple[int, FrameType | None]] = []
        if threading.current_thread() is _main:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self.before.append((number, handler))
                    _signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.caught.append((number, frame))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before:
            _signal.signal(number, handler)
        for number, frame in self.caught:
            dict(self.before)[number](number, frame)
