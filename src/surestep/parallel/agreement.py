"""Whether all processes do the same together: where one doesn't, the others would wait for ever.

What lies between collectives may differ, and so may the programs in which they are run: one process reads a value between two of them, the
others don't. What must agree is their sequence, in each group of processes. A collective that follows what it followed before goes without
a word, so that a steady loop pays nothing. Of any other each process writes to the store what it is, and how far its program goes. Before a
program with such ones is run the others are waited for, until they have come to the program in which its first collective is. No more can
be waited for: theirs may be shorter, and need this one to be run. But whoever comes last to a collective finds the others' word, so that
none that differs is begun. A thread looks at the store from time to time: it answers for what went without a word, and ends the process
where the main thread waits inside XLA.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from surestep.execute.world import World

Group = tuple[int, ...]

LOOKS = 0.25  # seconds between two looks at the store
GRACE = 5.0  # seconds for the main thread to raise an error, before the process is ended
SILENCE = 60.0  # seconds of waiting after which it is said
HISTORY = 10_000  # collectives for which a late question can be answered
CONTEXT = 16  # collectives that foretell the next


class Disagreement(RuntimeError):
    """The processes were about to do different things together, or one has ended or failed while the others wait for it."""


class Note(NamedTuple):
    """One collective, as the processes compare it."""

    group: Group
    what: str
    line: str


class _State(NamedTuple):
    """What a process says of itself in the store."""

    counts: dict[Group, int]  # how many collectives it has had, those of the program that it is about to run among them
    asked: tuple[tuple[Group, int], ...] = ()  # the collectives of which it wants the others' word
    ended: bool = False
    failure: str | None = None


class _Stream:
    """The collectives of one group, in their order."""

    def __init__(self) -> None:
        self.count = 0
        self.past: deque[Note] = deque(maxlen=HISTORY)
        self.recent: deque[str] = deque(maxlen=CONTEXT)
        self.next: dict[tuple[str, ...], str] = {}  # what followed what, the last time

    def foreseen(self, note: Note) -> bool:
        """Notes a collective. Whether it is what was to be expected: with the same past, all processes expect the same."""
        context = tuple(self.recent)
        found = self.next.get(context) == note.what
        if len(self.next) > HISTORY:
            self.next.clear()
        self.next[context] = note.what
        self.recent.append(note.what)
        self.past.append(note)
        self.count += 1
        return found

    def at(self, number: int) -> Note:
        """A collective that has been."""
        position = number - self.count + len(self.past)
        return self.past[position] if position >= 0 else Note((), "a collective too long ago to be known", "an unknown line")


class Agreement:
    """This process's part."""

    def __init__(self, store: dist.Store, place: World):
        self.store = store
        self.rank = place.rank
        self.everybody = tuple(range(place.size))
        self.streams: dict[Group, _Stream] = {}
        self.written: deque[tuple[Group, int]] = deque()
        self.pending: list[tuple[Group, int]] = []  # still to be compared
        self.error: str | None = None
        self.raised = threading.Event()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.told = _State({})
        self.say()
        self.thread = threading.Thread(target=self._look, name="surestep agreement", daemon=True)
        self.thread.start()

    # Collectives

    def check(self, notes: list[Note]) -> None:
        """Called before a program with these collectives is run. ``Disagreement`` where another process does something else."""
        self.look_for_error()
        self.settle()
        asked = []
        with self.lock:
            streams = [self.streams.setdefault(note.group, _Stream()) for note in notes]
            first = streams[0].count
            for note, stream in zip(notes, streams, strict=True):
                if not stream.foreseen(note):
                    asked.append((note.group, stream.count - 1))
        if asked:
            for group, number in asked:
                self._write(group, number)
            self.say(asked=tuple(asked))
            self.pending = asked
            self._meet(notes[0].group, first)

    def _meet(self, group: Group, first: int) -> None:
        """Waits until all in the group have come to their program with its collective ``first``; compares what there is to be compared."""
        states: dict[int, _State] = {}

        def missing() -> list[int]:
            states.update(self._states())
            return [rank for rank in group if states[rank].counts.get(group, 0) <= first]

        self._wait_until_none(missing, self.streams[group].at(first).what)
        self.pending = [
            (group, number)
            for group, number in self.pending
            if not self._compared(group, number, [rank for rank in group if states[rank].counts.get(group, 0) > number])
        ]

    def settle(self) -> None:
        """Waits for the others' word about what is running already."""
        while self.pending:
            group, number = self.pending[0]
            self._compared(group, number, group)
            self.pending = self.pending[1:]

    def _key(self, group: Group, number: int, rank: int) -> str:
        return f"{'.'.join(map(str, group))}/{number}/{rank}"

    def _write(self, group: Group, number: int) -> None:
        with self.lock:
            if (group, number) in self.written:
                return
            self.written.append((group, number))
            if len(self.written) > HISTORY:
                self.store.delete_key(self._key(*self.written.popleft(), self.rank))
            note = self.streams[group].at(number)
        self.store.set(self._key(group, number, self.rank), _packed(note))

    def _compared(self, group: Group, number: int, ranks: Sequence[int]) -> bool:
        """Waits for the word of some in the group, and compares; whether these are all."""
        keys = {rank: self._key(group, number, rank) for rank in ranks}
        self._wait_until_none(
            lambda: [] if self.store.check(list(keys.values())) else [rank for rank, key in keys.items() if not self.store.check([key])],
            self.streams[group].at(number).what,
        )
        self._compare(number, keys)
        self.look_for_error()
        return len(keys) == len(group)

    def _wait_until_none(self, missing: Callable[[], list[int]], what: str) -> None:
        start, said = time.monotonic(), 0.0
        while ranks := missing():
            self.look_for_error()
            waited = time.monotonic() - start
            if waited > said + SILENCE:
                said = waited
                _say(f"rank {self.rank} has waited {waited:.0f} s for rank(s) {ranks}: {what}")
            time.sleep(min(0.02, 0.0005 + waited / 10))

    def _compare(self, number: int, keys: dict[int, str]) -> None:
        notes = {rank: Note(*pickle.loads(self.store.get(key))) for rank, key in keys.items()}
        if len({note.what for note in notes.values()}) > 1:
            said = "; ".join(f"rank {rank}: {note.what} at {note.line}" for rank, note in sorted(notes.items()))
            self.error = f"the processes don't do the same together. The first difference is collective {number + 1} of this run: {said}"

    def look_for_error(self) -> None:
        """``Disagreement`` if there is one."""
        if self.error is not None:
            self.raised.set()
            self.say(failure=self.error)
            raise Disagreement(self.error)

    # The others

    def say(self, **changes: Any) -> None:
        """Tells the others about this process: how far it is, and what changes."""
        with self.lock:
            counts = {group: stream.count for group, stream in self.streams.items()}
            self.told = self.told._replace(counts=counts, **changes)
            self.store.set(f"state/{self.rank}", _packed(self.told))

    def _states(self) -> dict[int, _State]:
        found = self.store.multi_get([f"state/{rank}" for rank in self.everybody])
        return {rank: _State(*pickle.loads(state)) for rank, state in enumerate(found)}

    def _look(self) -> None:
        keys = [f"state/{rank}" for rank in self.everybody]
        while self.error is None:
            if self.over.wait(LOOKS):
                return
            try:
                if not self.store.check(keys):
                    continue
                self._consider(self._states())
            except dist.DistError:
                return  # the launcher has gone, and its store with it
        if not self.raised.wait(GRACE):  # the main thread waits inside XLA, where no exception reaches it
            _say(f"rank {self.rank}: {self.error}")
            sys.stdout.flush()
            os._exit(1)

    def _consider(self, states: dict[int, _State]) -> None:
        del states[self.rank]
        for rank, state in states.items():
            if state.failure is not None:
                self.error = self.error or f"rank {rank} has failed: {state.failure}"
            for group, number in state.asked:
                if self.rank in group and group in self.streams:
                    self._answer(rank, group, number)
            if state.ended:
                self._outlived(rank, state.counts)

    def _answer(self, rank: int, group: Group, number: int) -> None:
        """To another's question about a collective: what it is here, or that this process isn't there."""
        count, told = self.streams[group].count, self.told.counts.get(group, 0)
        if count > number:
            self._write(group, number)
            keys = {other: self._key(group, number, other) for other in (rank, self.rank)}
            if self.store.check(list(keys.values())):
                self._compare(number, keys)
        if told <= number and told != count:
            self.say()

    def _outlived(self, rank: int, ended: dict[Group, int]) -> None:
        for group, stream in self.streams.items():
            had = ended.get(group, 0)
            if rank in group and stream.count > had:
                note = stream.at(had)
                self.error = (
                    f"rank {rank} has ended after {had} collective(s), and rank {self.rank} goes on to another one: "
                    f"{note.what} at {note.line}. Do all ranks take the same number of steps? A DistributedSampler, or drop_last=True, "
                    f"gives each the same number of batches"
                )

    def end(self, failure: str | None) -> None:
        """Waits until all others have ended too; a failure is told, and nobody is waited for."""
        try:
            if failure is None:
                self._wait_for_all()
            else:
                self.say(failure=failure)
        finally:
            self.raised.set()
            self.over.set()
            self.thread.join()

    def _wait_for_all(self) -> None:
        self.settle()
        self.say(ended=True)
        self._wait_until_none(lambda: [rank for rank, state in self._states().items() if not state.ended], "this process has ended")
        self.look_for_error()


def _packed(value: tuple) -> Any:
    """Bytes, which a store takes, though its stub says ``str``."""
    return pickle.dumps(tuple(value))


def _say(message: str) -> None:
    print(f"surestep: {message}", file=sys.stderr, flush=True)  # noqa: T201 (a process that waits, or is about to be ended, has no other way)


_own: list[Agreement] = []


def begin(store: dist.Store, place: World) -> None:
    """This process's part begins."""
    _own.append(Agreement(store, place))


def own() -> Agreement:
    """This process's part."""
    return _own[0]


def check(notes: list[Any]) -> None:
    """``Disagreement`` where the others are about to do something else together than this process."""
    _own[0].check(notes)


def announce(what: str, line: Any) -> None:
    """As ``check``, of one thing that all processes do."""
    _own[0].check([Note(_own[0].everybody, what, str(line))])


def end(failure: str | None) -> None:
    """This process's part is over."""
    _own[0].end(failure)
