"""Reads ahead on another thread: batches are fetched and moved to the device while the step before them runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class Closed(Exception):
    """Nobody will take what is put any more."""


class Buffer:
    """A bounded queue between one thread that fills it and one that empties it. Either can end it."""

    def __init__(self, size: int):
        self._size = size
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._finished = self._closed = False
        self._error: BaseException | None = None

    def put(self, item: Any) -> None:
        """Waits for room. ``Closed`` if the buffer is closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size)
            if self._closed:
                raise Closed
            self._items.append(item)
            self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more will be put. With an error, ``get`` raises it after the last item."""
        with self._changed:
            self._finished, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Any:
        """Waits for an item. ``StopIteration`` after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished or bool(self._items))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def close(self) -> None:
        """Drops what is there; lets the filling thread end."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def fill(items: Iterator[Any], buffers: list[Buffer], moves: list[Callable[[Any], Any]]) -> threading.Thread:
    """Starts a thread that deals items to the buffers in turn, each moved as its buffer's own; an incomplete round is left out."""
    thread = threading.Thread(target=_fill, args=(items, buffers, moves), name="surestep loader", daemon=True)
    thread.start()
    return thread


def _fill(items: Iterator[Any], buffers: list[Buffer], moves: list[Callable[[Any], Any]]) -> None:
    error: BaseException | None = None
    try:
        for dealt in zip(*[items] * len(buffers), strict=False):
            for item, buffer, move in zip(dealt, buffers, moves, strict=True):
                buffer.put(move(item))
    except Closed:
        pass
    except BaseException as raised:  # whatever the user's dataset raises belongs to the loop that asks for the batch
        error = raised
    for buffer in buffers:
        buffer.finish(error)
