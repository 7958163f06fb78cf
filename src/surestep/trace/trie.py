"""A trace is a path in a trie: one edge a recorded operation, keyed by the operation, its SSA operands and its constants.

So a known trace costs one dictionary look-up an operation, and no inference; and which trace it is, is exact: there is no hash that could
collide.

Numbers. A number is a constant at first. When the same place in the same trace sees a second value, the
edge is replaced by one where the number is an input of the program ("lifted"), so that a learning-rate
schedule costs one more program ever. The new path starts without history, so each of its places points to its *twin* on the
old path: what changed there too is lifted at once, rather than one number more at each step.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from surestep.trace.operands import ref
from surestep.trace.records import Record, needs


class Edge:
    """From one place to the next: what was recorded, and what the dispatcher needs to know of its results."""

    __slots__ = ("count", "place", "record", "ref", "results", "scalars")

    def __init__(self, place: Place, record: Record, results: Any, scalars: tuple | None = None):
        self.place = place
        self.record = record
        self.count = record.results
        self.ref = ref(place.totals[0] - record.results)  # the first result's value
        self.results = results  # layouts, as whoever recorded it wants them
        self.scalars = scalars  # the numbers that could be lifted, exact, in the order of the operands


class Place:
    """Where a trace stands after the operations so far."""

    __slots__ = ("edges", "entry", "lifted", "parent", "programs", "seen", "totals", "twin")

    def __init__(self, parent: Place | None = None):
        self.parent = parent
        self.entry: Edge | None = None  # the edge that leads here
        self.edges: dict[Any, Edge] = {}
        self.seen: dict[Any, Edge] = {}  # by generic key: the edge that holds the numbers as constants
        self.lifted: dict[Any, Edge] = {}  # by generic key: the edge that takes them as inputs
        self.programs: dict[Any, Any] = {}
        self.twin: Place | None = None
        self.totals: tuple[int, int, int, int] = (0, 0, 0, 0)  # values, leaves, floats and ints of the trace that ends here

    def records(self) -> list[Record]:
        """The trace that ends here."""
        found: list[Record] = []
        place: Place | None = self
        while place is not None and place.entry is not None:
            found.append(place.entry.record)
            place = place.parent
        found.reverse()
        return found

    def forget_twins(self) -> None:
        """Called when a program exists for this place: from here on the path has a history of its own."""
        place: Place | None = self
        while place is not None:
            place.twin = None
            place = place.parent


class Trie:
    """The root of all traces of a device, bounded: when it has grown too large it starts again, and programs are found anew."""

    LIMIT = 200_000  # places; some 100 MB
    PROGRAMS = 400  # each takes some tens of the 65,530 memory maps that Linux gives a process

    def __init__(self) -> None:
        self.programs: OrderedDict[tuple[Place, Any], None] = OrderedDict()  # least recently used first
        self.root = Place()
        self.inner: dict[Any, Place] = {}  # where traces within traces begin, by what is recorded: what differs there is no number
        self.places = 0

    def add(self, place: Place, record: Record, results: Any, scalars: tuple | None = None) -> Edge:
        """A new edge away from a place, to a new one. The caller enters it into the place's tables, under the keys by which it is found."""
        target = Place(place)
        values, leaves, floats, ints = place.totals
        more_leaves, more_floats, more_ints = needs(record)
        target.totals = (values + record.results, leaves + more_leaves, floats + more_floats, ints + more_ints)
        self.places += 1
        edge = Edge(target, record, results, scalars)
        target.entry = edge
        return edge

    def used(self, place: Place, key: Any) -> bool:
        """Notes that a program was used. When there are too many, forgets the one that wasn't for the longest time, and returns True."""
        self.programs[place, key] = None
        self.programs.move_to_end((place, key))
        if len(self.programs) <= self.PROGRAMS:
            return False
        (old, old_key), _ = self.programs.popitem(last=False)
        del old.programs[old_key]
        self._prune(old)
        return True

    def _prune(self, place: Place) -> None:
        """Forgets the way to a place from which no other goes on: records hold their lowerings, some kilobytes each."""
        while place.parent is not None and not (place.programs or place.edges or place.lifted or place.seen):
            parent, entry = place.parent, place.entry
            for table in (parent.edges, parent.seen, parent.lifted):
                for key in [key for key, edge in table.items() if edge is entry]:
                    del table[key]
            self.places -= 1
            place = parent

    def full(self) -> bool:
        """Whether it has grown too large: to be cleared before the next trace begins."""
        return self.places > self.LIMIT

    def clear(self) -> None:
        """Forgets all traces and their programs."""
        self.programs.clear()
        self.root, self.inner = Place(), {}
        self.places = 0
