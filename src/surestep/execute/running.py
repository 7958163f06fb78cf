"""Programs that were started and may still be running on a device. JAX calls return at once; who waits, waits for these."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

_all: weakref.WeakSet[Running] = weakref.WeakSet()


def finish() -> None:
    """Returns when all devices have done what was started."""
    for running in list(_all):
        running.wait()


class Running:
    """The runs of one device that aren't known to be over, oldest first: each by its smallest output, so that hardly any memory is held.

    All outputs of a program are ready when the program is over. An output whose memory was given to a later program is waited for by that.
    """

    def __init__(self) -> None:
        self.runs: deque[tuple[Any, str]] = deque()
        _all.add(self)

    def add(self, output: Any, program: str) -> None:
        """A run was started."""
        self.runs.append((output, program))

    def check(self) -> None:
        """Forgets what is over. Raises what a program raised as it ran, with its name."""
        runs = self.runs
        while runs and (runs[0][0].is_deleted() or runs[0][0].is_ready()):
            self._over(*runs.popleft())

    def wait(self) -> None:
        """Returns when all is over. Raises what a program raised as it ran, with its name."""
        while self.runs:
            self._over(*self.runs.popleft())

    def _over(self, output: Any, program: str) -> None:
        if output.is_deleted():
            return
        try:
            output.block_until_ready()
        except RuntimeError as error:
            raise RuntimeError(f"{program} failed while it ran on the device: {error}") from error
