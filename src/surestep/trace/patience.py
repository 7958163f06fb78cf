"""How much is recorded before the trace is cut though nobody asked for it: more, once it is seen how long a step of the program is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surestep.execute.program import Program

SOFT_LIMIT = 1_000  # values: from here on the trace is cut where the user's program passes the anchor
HARD_LIMIT = 10_000  # values: cut anywhere


class Patience:
    """The soft limit of one device. A step of a large model that was cut in parts is one program from the next one on. A loop that goes
    round without a boundary, into the same program most of the times, is still cut there: as one program it would take long to compile.
    """

    def __init__(self) -> None:
        self.limit = SOFT_LIMIT
        self.values = 0  # recorded since the program's own last boundary
        self.parts: list[Program] = []  # what was run at the limit since then

    def cut(self, values: int, program: Program, asked: bool) -> None:
        """A program of so many values was run, at a boundary of the user's program or at the limit."""
        self.values += values
        if not asked:
            self.parts.append(program)
            return
        if self.values <= HARD_LIMIT and 2 * len(set(map(id, self.parts))) >= len(self.parts):
            self.limit = max(self.limit, self.values)
        self.parts.clear()
        self.values = 0
