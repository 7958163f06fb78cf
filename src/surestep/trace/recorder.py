"""The recorder of a device: where its trace stands, and the cut that turns the trace into one run of a program.

There is one trace a device and one lock for all: threads that record at the same time interleave in one trace, in the order in which they
took the lock. A cut either succeeds, or leaves the trace and every storage as they were.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

from surestep.execute import dtypes, host_kernels, spmd
from surestep.execute.interrupts import Held, start
from surestep.execute.running import Running
from surestep.execute.world import is_spmd
from surestep.observe import events, frames
from surestep.observe.events import Cause
from surestep.trace import marks
from surestep.trace.layout import Layout
from surestep.trace.operands import LIFTED_INT, Mark, Ref, ref
from surestep.trace.patience import HARD_LIMIT, Patience
from surestep.trace.records import Alike, Collective, Constrain, Empty, Join, Leaf, Part, Read, Record, Seed, Write
from surestep.trace.storage import Storage
from surestep.trace.trie import Edge, Place, Trie

if TYPE_CHECKING:
    from surestep.execute.program import Program

LOCK = threading.RLock()
SUPERSET_USES = 8  # so often a program with outputs too many is used before the exact one is compiled
_OF_A_TRACE = (  # what a trace within a trace has of its own
    *("serial", "place", "count", "leaves", "leaf_layouts", "owners", "floats", "ints", "written", "collectives", "seeds"),
    *("limit", "anchor_until", "in_step", "sealed", "outside"),
)

_serials = itertools.count(1)
_EMPTY, _SEED, _READ, _WRITE = map(Mark, ("empty", "seed", "read", "write"))
_CONSTRAIN, _PART, _JOIN, _ALIKE = map(Mark, ("constrain", "part", "join", "alike"))
_programs = itertools.count(1)


class Recorder:
    """The trace of a device since the last cut: its place in the trie, its inputs so far, and the storages whose values it computes."""

    # With many processes under SPMD: before all of them are to do one thing, whether all do.
    announce: ClassVar[Callable[[str, Any], None] | None] = None

    def __init__(self, device: int):
        self.device = device
        self.trie = Trie()
        self.in_step = 0  # how many step()s are open
        self.anchor: tuple | None = None
        self.sealed: Callable[[Cause], None] | None = None  # raises where the user said that there shall be no boundary
        self.options: tuple[tuple[str, Any], ...] = ()  # XLA's, for the programs that are built now
        self.watch: Callable[[], None] | None = None  # is called before each operation that is recorded
        self.spread = device == 0 and is_spmd()  # whether this device stands for all
        self.running = Running()
        self.ran: Program | None = None  # by the last cut
        self.compiling: dict[tuple[Place, Any], Future[Program]] = {}
        self.sites: dict[tuple[int, int], tuple[int, tuple, bool]] = {}  # by line of code: the trace, the floats, whether others before
        self.agree: Callable[[list[Any]], None] | None = None  # before what all processes do together is run: whether they all do
        self.outside: Any = None  # in a trace within a trace: what becomes of storages from outside of it
        self.patience = Patience()
        self.begin()

    def begin(self) -> None:
        """A new, empty trace."""
        if self.trie.full():
            events.emit("evicted", None, places=self.trie.places)
            self.trie.clear()
        self.protected: list[Any] = []
        self._start(self.trie.root)

    def _start(self, place: Place) -> None:
        self.serial = next(_serials)
        self.place: Place = place
        self.count = 0  # SSA values so far
        self.leaves: list[Any] = []
        self.leaf_layouts: list[Layout] = []
        self.owners: list[weakref.ref[Storage]] = []
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.written: list[weakref.ref[Storage]] = []
        self.collectives: list[Any] = []  # what the trace does together with other processes, with the lines
        self.seeds: dict[Any, tuple[Ref, int]] = {}  # by generator and seed: the seed's value, and the offset that it holds
        # when `count` reaches it, check_limit() is to be called before an operation is recorded
        self.limit = self.patience.limit if self.watch is None else 0
        self.anchor_until = self.patience.limit if self.anchor is None else 2 * self.patience.limit

    def nest(self, what: Any, outside: Any, sealed: Callable[[Cause], None]) -> dict[str, Any]:
        """Begins a trace within this one, in which there may be no boundary; returns what ``resume`` takes to go on with this one.

        ``what`` is recorded tells which traces begin alike, so that a number which differs between them is one that changes.
        ``outside.owns(storage)`` says whether a storage is from outside of it: then its value enters as a leaf, for which ``leaves`` holds
        what ``outside.note(storage)`` gives. ``outside.check_write(storage)`` raises where it may not be written.
        """
        before = {name: getattr(self, name) for name in _OF_A_TRACE}
        self._start(self.trie.inner.get(what) or self.trie.inner.setdefault(what, Place()))
        self.outside, self.sealed, self.in_step = outside, sealed, self.in_step + 1
        return before

    def resume(self, before: dict[str, Any]) -> None:
        """Goes on with the trace around the one that ``nest`` began."""
        vars(self).update(before)

    # Recording

    def take(self, edge: Edge) -> Ref:
        """Follows an edge; returns its first result."""
        self.place = edge.place
        self.count += edge.count
        return edge.ref

    def simple(self, key: Any, record: Callable[[], Record]) -> Ref:
        """Records what has nothing to infer and nothing to lift."""
        return self.take(self.place.edges.get(key) or self.exact(key, lambda: (record(), None)))

    def exact(self, key: Any, make: Any) -> Edge:
        """A new edge where there is nothing to lift; ``make()`` gives the record and the results, unless the twin knows them."""
        place, twin = self.place, self.place.twin
        before = None if twin is None else twin.edges.get(key)
        record, results = make() if before is None else (before.record, before.results)
        edge = place.edges[key] = self.trie.add(place, record, results)
        if before is not None:
            edge.place.twin = before.place
        return edge

    def enter(self, storage: Storage) -> Ref:
        """The SSA value of a storage that this trace hasn't seen yet."""
        outside, layout = self.outside, storage.layout
        if storage.array is None:
            if storage.lost is not None:
                raise RuntimeError(storage.lost)
            if outside is None or not outside.owns(storage):
                self.define(storage, self.simple((_EMPTY, layout), lambda: Empty(layout)))
                return storage.ref
        array: Any = storage.array if outside is None else outside.note(storage)
        key: Any = layout
        mesh: Any = None
        if self.spread and outside is None:
            array = storage.array = spmd.placed(array, storage.sharding)
            if in_parts(storage):
                sharding: Any = array.sharding
                mesh = sharding.mesh
                key = (_PART, layout, mesh)
        self.leaves.append(array)
        self.leaf_layouts.append(layout)
        self.owners.append(weakref.ref(storage))
        value = self.simple(key, lambda: Leaf(layout, mesh))
        storage.serial = self.serial
        storage.ref = value
        return value

    def repair(self) -> None:
        """After any exception while something was recorded, an interrupt among them: what was noted for an operation that the trace didn't
        take is dropped. (All is noted before the trace goes on, and it goes on in two plain assignments, which no signal parts.)
        """
        self.count, leaves, floats, ints = self.place.totals
        for noted in (self.leaves, self.leaf_layouts, self.owners):
            del noted[leaves:]
        del self.floats[floats:], self.ints[ints:]
        if self.collectives:
            del self.collectives[sum(isinstance(record, Collective) for record in self.place.records()) :]

    def define(self, storage: Storage, value: Ref) -> None:
        """The storage's value is now this one."""
        if self.outside is not None:
            self.outside.check_write(storage)
        if storage.exported:
            self.protect(storage.array)
        self.written.append(weakref.ref(storage))  # first: what is pending and not on the list would never be computed
        storage.array = None
        storage.serial = self.serial
        storage.ref = value
        storage.exported = False
        storage.lost = storage.uniform = None

    def protect(self, array: Any) -> None:
        """The array was given away: whatever becomes of its storage, no program is given its memory."""
        self.protected.append(array)

    def value(self, storage: Storage) -> Ref:
        """The SSA value of a whole storage."""
        return storage.ref if storage.serial == self.serial else self.enter(storage)

    def read(self, storage: Storage, view: Layout) -> Ref:
        """The SSA value of a view of the storage."""
        value = self.value(storage)
        key = (_READ, value, view)
        edge = self.place.edges.get(key)
        if edge is None:
            edge = self._at_offset(key, (_READ, value), view, lambda offset: Read(value, storage.layout, view, offset))
        return self.take(edge)

    def write(self, storage: Storage, view: Layout, new: Ref) -> None:
        """Overwrites a view of the storage with an SSA value of the view's shape and dtype."""
        value = self.value(storage)
        key = (_WRITE, value, new, view)
        edge = self.place.edges.get(key)
        if edge is None:
            edge = self._at_offset(key, (_WRITE, value, new), view, lambda offset: Write(value, new, storage.layout, view, offset))
        self.define(storage, self.take(edge))

    def constrain(self, storage: Storage, sharding: Any) -> None:
        """The storage's value lies over the devices as the sharding says, in this trace from here on."""
        value = self.value(storage)
        self.define(storage, self.constrained(value, sharding, storage.layout))

    def constrained(self, value: Ref, sharding: Any, layout: Layout) -> Ref:
        """A value of this layout that lies over the devices as the sharding says."""
        return self.simple((_CONSTRAIN, value, sharding), lambda: Constrain(value, sharding, layout))

    def parted(self, value: Ref, sharding: Any, layout: Layout) -> Ref:
        """The devices' parts of a value, each of this layout."""
        return self.simple((_PART, value, sharding), lambda: Part(value, sharding, layout))

    def joined(self, value: Ref, sharding: Any, layout: Layout) -> Ref:
        """The value, of this layout, whose parts the devices have."""
        return self.simple((_JOIN, value, sharding), lambda: Join(value, sharding, layout))

    def alike(self, values: tuple[Ref, Ref], layouts: tuple[Layout, Layout]) -> tuple[Ref, Ref]:
        """Two values, which lie over the devices in the same way."""
        first = self.simple((_ALIKE, *values), lambda: Alike(values, layouts))
        return first, ref(first.index + 1)

    def _at_offset(self, key: tuple, generic: tuple, view: Layout, record: Any) -> Edge:
        """An index that changes from step to step (``data[i]``) becomes an input of the program, as other numbers do."""
        return self.numbered(
            key,
            (*generic, view.sizes, view.strides, view.dtype),
            (view.offset,),
            lambda lift: (record(LIFTED_INT if lift else view.offset), None),
        )

    def numbered(self, key: tuple, generic: tuple, scalars: tuple, make: Any) -> Edge:
        """The edge for a call with numbers in it, after the exact key was not found: constants at first, lifted on the second value.

        ``make(lift)`` gives the record and the results.
        """
        place = self.place
        edge = place.lifted.get(generic)
        if edge is None:
            twin = place.twin
            before = place.seen.get(generic)
            if before is None and twin is not None:
                before = twin.lifted.get(generic) or twin.seen.get(generic)
            changed = self.changed_elsewhere(scalars) if before is None else before.scalars != scalars
            record, results = make(changed)
            if changed:
                edge = place.lifted[generic] = self.trie.add(place, record, results)
                place.edges = {exact: other for exact, other in place.edges.items() if other is not before}
                events.emit("lifted", frames.user_line(), record=record)
            else:
                edge = place.edges[key] = place.seen[generic] = self.trie.add(place, record, results, scalars)
            if before is not None:
                edge.place.twin = before.place
            if not changed:
                return edge
        for number in scalars:
            (self.floats if type(number) is float else self.ints).append(number)
        return edge

    def changed_elsewhere(self, scalars: tuple) -> bool:
        """Whether the line of code that gives these floats gave others in an earlier trace.

        A new trace (the first step with an optimizer's state, a smaller batch) has no history, but the code has: what an optimizer computes
        from its step count need not be a constant once more. Only floats: an integer is rather an exponent or a size.
        """
        if not all(type(number) is float for number in scalars):
            return False
        site = frames.code_line()
        serial, before, changed = self.sites.get(site, (self.serial, scalars, False))
        if serial != self.serial:
            changed = before != scalars
        self.sites[site] = (self.serial, scalars, changed)
        return changed

    def seed(self, generator: Any, seed: int, offset: int) -> tuple[Ref, int]:
        """The value that holds a generator's seed, and how many draws lie between it and ``offset``."""
        found = self.seeds.get((generator, seed))
        if found is None:
            self.ints += [seed if seed < 1 << 63 else seed - (1 << 64), offset]
            found = self.seeds[generator, seed] = self.simple(_SEED, Seed), offset
        return found[0], offset - found[1]

    # Cutting

    def check_limit(self) -> None:
        """A trace that nobody cuts must not grow for ever; and where it is cut must not depend on how long the loop's body is, or each cut
        would be another program. So it is cut where the user's program passes one place (its whole stack of lines) again: the anchor.
        """
        if self.watch is not None:
            self.watch()
        if self.count < self.patience.limit or self.outside is not None:
            return
        if self.count >= HARD_LIMIT:
            self.cut(Cause.LIMIT)
        elif self.in_step:
            self.limit = HARD_LIMIT
        else:
            stack = frames.user_stack()
            if stack == self.anchor:
                self.cut(Cause.LIMIT)
            elif self.count >= self.anchor_until:
                self.anchor, self.anchor_until = stack, self.count + self.patience.limit

    def pending(self) -> dict[int, Storage]:
        """The storages whose value is still to be computed, by the SSA index of their value."""
        found = {}
        for owner in self.written:
            storage = owner()
            if storage is not None and storage.serial == self.serial and storage.array is None:
                found[storage.ref.index] = storage
        return found

    def cut(self, cause: Cause) -> bool:
        """Runs what is pending as one program and starts a new trace. False where nothing was pending."""
        if self.sealed is not None:
            self.sealed(cause)
        with LOCK:
            self.running.check()
            if not self.count:
                return False
            live = self.pending()
            if not live and not self.collectives:
                self.begin()
                return False
            line = frames.user_line()
            if self.agree is not None and self.collectives:
                self.agree(self.collectives)
            self.meet(f"a program of {self.count} values, {len(self.leaves)} inputs and {len(live)} results", line)
            program = self.ran = self._program(live, line)
            start = time.perf_counter()
            host_kernels.prepare()
            with Held():
                try:
                    arrays = program(self.leaves, *program.with_numbers(self.floats, self.ints))
                except BaseException as error:
                    self._lose(live, program, line, error)
                    raise
                self.running.add(arrays[program.smallest], program.name)
                for index, array in zip(program.outputs, arrays, strict=False):  # one with collectives gives one more
                    storage = live.get(index)
                    if storage is not None:
                        storage.array = array
                values, in_step = self.count, bool(self.in_step)
                self.patience.cut(values, program, cause is not Cause.LIMIT)
                self.begin()
        seconds = time.perf_counter() - start
        events.emit("boundary", line, cause=cause, program=program.name, values=values, in_step=in_step, seconds=seconds)
        return True

    def meet(self, what: str, line: frames.Line | None) -> None:
        """Under SPMD all processes do the same; where one doesn't, it is an error rather than a hang."""
        if self.spread and Recorder.announce is not None:
            Recorder.announce(what, line)

    def _donatable(self) -> list[int]:
        """Leaves that nobody can read after this trace: their storage is gone or was overwritten."""
        found = []
        leaves, given = self.leaves, set(map(id, self.protected))
        if len(set(map(id, leaves))) < len(leaves):
            return []  # an interrupt can make a leaf of one array twice: then none is given away
        for position, (owner, array) in enumerate(zip(self.owners, leaves, strict=True)):
            storage = owner()
            if (storage is None or storage.array is not array) and id(array) not in given:
                found.append(position)
        return found

    def _program(self, live: dict[int, Storage], line: frames.Line | None) -> Program:
        outputs = tuple(sorted(live))
        donatable = self._donatable()
        shardings = self._shardings(live, outputs) if self.spread else None
        key = (outputs, tuple(donatable), self.options, shardings)
        place = self.place
        programs = place.programs
        found = programs.get(key)
        if found is None:
            found = self._superset(outputs, donatable, shardings)
            if found is not None:
                return found
            # What an interrupt left in the middle is still being compiled: it is waited for, not begun again.
            compiling = self.compiling.get((place, key))
            if compiling is None:
                compiling = self.compiling[place, key] = self._compiled(live, outputs, donatable, line, shardings)
            try:
                found = programs[key] = compiling.result()
            except Exception as error:
                if compiling.done() and compiling.exception() is error:  # not a signal's, for which the trace waits
                    with Held():
                        self._forsake(live, f"it couldn't be compiled ({line}): {error}")
                raise
            finally:
                if compiling.done():
                    self.compiling.pop((place, key), None)
            place.forget_twins()
            marks.say_gathered(found.gathered, line)
        if self.trie.used(place, key):
            events.emit("evicted", line, programs=Trie.PROGRAMS)
        return found

    def _shardings(self, live: dict[int, Storage], outputs: tuple[int, ...]) -> tuple[tuple, tuple]:
        """How the leaves lie over the devices, and how the outputs are to: as somebody said, else as what they overwrite; what is new, as
        XLA likes (None).
        """
        lie = tuple(array.sharding for array in self.leaves)
        before = {}
        for owner, layout, sharding in zip(self.owners, self.leaf_layouts, lie, strict=True):
            storage = owner()
            if storage is not None and storage.layout.sizes == layout.sizes:
                before[id(storage)] = sharding
        return lie, tuple(live[index].sharding or before.get(id(live[index])) for index in outputs)

    def _watched(self) -> dict[int, marks.Mark]:
        """The leaves that are parameters which no program should gather."""
        storages = ((position, owner()) for position, owner in enumerate(self.owners))
        return {position: storage.mark for position, storage in storages if storage is not None and storage.mark is not None}

    def _compiled(
        self,
        live: dict[int, Storage],
        outputs: tuple[int, ...],
        donatable: list[int],
        line: frames.Line | None,
        shardings: tuple[tuple, tuple] | None,
    ) -> Future[Program]:
        from surestep.execute.program import Input, build  # JAX is imported when it is first needed
        from surestep.lower.interpret import interpreted

        def figures(layout: Layout, sharding: Any, shape: Any = None) -> Input:
            return Input(tuple(layout.sizes) if shape is None else shape, dtypes.to_jax(layout.dtype), sharding)

        function = interpreted(self.place.records(), outputs)
        lie, wanted = shardings or (repeat(None), repeat(None))
        shapes = [array.shape for array in self.leaves]
        leaves = [figures(*given) for given in zip(self.leaf_layouts, lie, shapes, strict=False)]
        numbers = len(self.floats), len(self.ints)
        results = [(index, figures(live[index].layout, sharding)) for index, sharding in zip(outputs, wanted, strict=False)]
        options, together = dict(self.options), bool(self.collectives)
        name = f"program_{next(_programs)}"
        watched = self._watched() if self.spread else None
        return start(
            lambda: build(name, function, leaves, numbers, results, donatable, self.device, line, options, together, self.spread, watched)
        )

    def _superset(self, outputs: tuple[int, ...], donatable: list[int], shardings: Any) -> Program | None:
        """A program of this trace that computes more than is asked for. What lives at a cut can hang on the garbage collector's timing
        (activations in a reference cycle), which must not compile anew each time.
        """
        wanted, free = set(outputs), set(donatable)
        for (given, _, options, lie), program in self.place.programs.items():
            if lie is not None and not _agree(lie, given, shardings, outputs):
                continue
            if options == self.options and program.uses < SUPERSET_USES and wanted.issubset(program.outputs) and program.donated <= free:
                program.uses += 1
                return program
        return None

    def _lose(self, live: dict[int, Storage], program: Program, line: frames.Line | None, error: BaseException) -> None:
        """A program failed as it was called.

        If it had been given memory already, what it was to compute can't be computed again: those tensors say so from now on. Else nothing
        has happened, and the trace can still be run.
        """
        if not any(leaf.is_deleted() for leaf in self.leaves):
            return
        self._forsake(live, f"its memory was given to {program.name} ({line}), which failed: {error}")

    def _forsake(self, live: dict[int, Storage], why: str) -> None:
        """What the trace was to compute will never be: those tensors say so, and what comes later is another trace."""
        for storage in live.values():
            storage.serial = 0
            storage.lost = f"this tensor's value is lost: {why}"
        self.begin()


def in_parts(storage: Storage) -> bool:
    """Whether the array holds a part a device, stacked, between ``enable_manual_sharding`` and ``disable_manual_sharding``."""
    array: Any = storage.array
    return array.ndim > len(storage.layout.sizes)


def _agree(lie: tuple, given: tuple[int, ...], shardings: Any, outputs: tuple[int, ...]) -> bool:
    """Whether a program for leaves and outputs that lie so gives what is wanted as it is wanted."""
    leaves, results = shardings
    how = dict(zip(given, lie[1], strict=True))
    return lie[0] == leaves and all(how.get(index, sharding) == sharding for index, sharding in zip(outputs, results, strict=True))
