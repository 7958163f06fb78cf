"""Whether all processes are about to do the same together: where one doesn't, the others would wait for ever.

What lies between collectives may differ, and so may the programs that hold them; what must agree is their sequence. Each run of a program
with collectives is one *meeting*, counted by the group that meets. A process whose meeting is the one that followed the same before says
nothing, so that a steady loop pays nothing. One whose meeting is another writes it to the store and waits for the others' word. A thread
looks there from time to time, and answers for meetings that were not worth a word.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import torch.distributed as dist

from surestep.execute.world import World

Group = tuple[int, ...]

LOOKS = 0.25  # seconds between two looks at the store
GRACE = 5.0  # seconds for the main thread to raise an error, before the process is ended
SILENCE = 60.0  # seconds of waiting after which it is said
HISTORY = 10_000  # meetings for which a late question can be answered
KEPT = 16  # words of this process that are left in the store


class Disagreement(RuntimeError):
    """The processes were about to do different things together, or one has ended or failed while the others wait for it."""


class Note(NamedTuple):
    """One collective, as the processes compare it."""

    group: Group
    what: str
    line: str


class _State(NamedTuple):
    """What a process says of itself in the store."""

    asked: tuple[tuple[Group, int], ...] = ()  # the meetings for which it waits
    ended: dict[Group, int] | None = None  # how many meetings it has had, when it has ended
    failure: str | None = None


class _Meetings:
    """Those of one group."""

    def __init__(self) -> None:
        self.count = 0
        self.past: deque[tuple[Note, ...]] = deque(maxlen=HISTORY)
        self.next: dict[Any, tuple[str, ...]] = {}  # what followed what, the last time
        self.last: tuple[str, ...] = ()

    def expected(self, sequence: list[Note]) -> bool:
        """Notes a meeting. Whether it could be foreseen: all processes have the same past, and so foresee the same."""
        what = tuple(note.what for note in sequence)
        foreseen = self.next.get(self.last) == what
        self.next[self.last] = self.last = what
        self.past.append(tuple(sequence))
        self.count += 1
        return foreseen

    def at(self, number: int) -> tuple[Note, ...]:
        """The sequence of a meeting that has been."""
        position = number - self.count + len(self.past)
        return self.past[position] if position >= 0 else (Note((), "a meeting too long ago to be known", "an unknown line"),)


class Agreement:
    """This process's part."""

    def __init__(self, store: dist.Store, place: World):
        self.store = store
        self.rank = place.rank
        self.everybody = tuple(range(place.size))
        self.state = _State()
        self.meetings: dict[Group, _Meetings] = {}
        self.answered: deque[tuple[Group, int]] = deque()
        self.error: str | None = None
        self.raised = threading.Event()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.say(self.state)
        self.thread = threading.Thread(target=self._look, name="surestep agreement", daemon=True)
        self.thread.start()

    # Meetings

    def check(self, notes: list[Note]) -> None:
        """Called before each meeting. ``Disagreement`` where another process does something else."""
        self.look_for_error()
        by_group: dict[Group, list[Note]] = {}
        for note in notes:
            by_group.setdefault(note.group, []).append(note)
        asked = []
        with self.lock:
            for group, sequence in sorted(by_group.items()):
                meetings = self.meetings.setdefault(group, _Meetings())
                if not meetings.expected(sequence):
                    asked.append((group, meetings.count - 1))
        if asked:
            for group, number in asked:
                self._answer(group, number)
            self.say(_State(asked=tuple(asked)))
            for group, number in asked:
                self._differ(number, self._wait(group, number))
                self.look_for_error()
            self.say(_State())

    def _key(self, group: Group, number: int, rank: int) -> str:
        return f"{'.'.join(map(str, group))}/{number}/{rank}"

    def _answer(self, group: Group, number: int) -> None:
        with self.lock:
            if (group, number) in self.answered:
                return
            self.answered.append((group, number))
            if len(self.answered) > KEPT:
                self.store.delete_key(self._key(*self.answered.popleft(), self.rank))
            sequence = self.meetings[group].at(number)
        self.store.set(self._key(group, number, self.rank), pickle.dumps([tuple(note) for note in sequence]))

    def _wait(self, group: Group, number: int) -> dict[int, list[Note]]:
        keys = {rank: self._key(group, number, rank) for rank in group}
        start, said = time.monotonic(), 0.0
        while not self.store.check(list(keys.values())):
            self.look_for_error()
            waited = time.monotonic() - start
            if waited > said + SILENCE:
                said = waited
                missing = [rank for rank, key in keys.items() if not self.store.check([key])]
                _say(f"rank {self.rank} has waited {waited:.0f} s for rank(s) {missing}: {self.meetings[group].past[-1][0].what}")
            time.sleep(min(0.02, 0.0005 + waited / 10))
        return {rank: self._read(key) for rank, key in keys.items()}

    def _read(self, key: str) -> list[Note]:
        return [Note(*note) for note in pickle.loads(self.store.get(key))]

    def _differ(self, number: int, found: dict[int, list[Note]]) -> None:
        difference = first_difference(found)
        if difference is not None:
            self.error = f"the processes don't do the same together at meeting {number + 1}. {difference}"

    def look_for_error(self) -> None:
        """``Disagreement`` if there is one."""
        if self.error is not None:
            self.raised.set()
            self.say(_State(failure=self.error))
            raise Disagreement(self.error)

    # The others

    def say(self, state: _State) -> None:
        """Tells the others about this process."""
        self.state = state
        self.store.set(f"state/{self.rank}", pickle.dumps(tuple(state)))

    def _look(self) -> None:
        keys = [f"state/{rank}" for rank in self.everybody]
        while self.error is None:
            if self.over.wait(LOOKS):
                return
            try:
                if not self.store.check(keys):
                    continue
                states = {rank: _State(*pickle.loads(self.store.get(key))) for rank, key in zip(self.everybody, keys, strict=True)}
            except dist.DistError:
                return  # the launcher has gone, and its store with it
            states.pop(self.rank)
            self._consider(states)
        if not self.raised.wait(GRACE):  # the main thread waits inside XLA, where no exception reaches it
            _say(f"rank {self.rank}: {self.error}")
            sys.stdout.flush()
            os._exit(1)

    def _consider(self, states: dict[int, _State]) -> None:
        for rank, state in states.items():
            if state.failure is not None:
                self.error = self.error or f"rank {rank} has failed: {state.failure}"
            for group, number in state.asked:
                if self.rank in group and group in self.meetings and self.meetings[group].count > number:
                    self._answer(group, number)
                    theirs, ours = (self._key(group, number, other) for other in (rank, self.rank))
                    if self.store.check([theirs, ours]):
                        self._differ(number, {rank: self._read(theirs), self.rank: self._read(ours)})
            if state.ended is not None:
                self._outlived(rank, state.ended)

    def _outlived(self, rank: int, ended: dict[Group, int]) -> None:
        for group, meetings in self.meetings.items():
            if rank in group and meetings.count > ended.get(group, 0):
                note = meetings.at(ended.get(group, 0))[0]
                self.error = (
                    f"rank {rank} has ended after {ended.get(group, 0)} meeting(s), and rank {self.rank} goes on to another one: "
                    f"{note.what} at {note.line}. Do all ranks take the same number of steps? A DistributedSampler, or drop_last=True, "
                    f"gives each the same number of batches"
                )

    def end(self, failure: str | None) -> None:
        """Waits until all others have ended too; a failure is told, and nobody is waited for."""
        try:
            if failure is None:
                self._wait_for_all()
            else:
                self.say(_State(failure=failure))
        finally:
            self.raised.set()
            self.over.set()
            self.thread.join()

    def _wait_for_all(self) -> None:
        self.say(_State(ended={group: meetings.count for group, meetings in self.meetings.items()}))
        keys = [f"state/{rank}" for rank in self.everybody]
        start, said = time.monotonic(), 0.0
        while True:
            self.look_for_error()
            states = [_State(*pickle.loads(self.store.get(key))) for key in keys]
            if all(state.ended is not None for state in states):
                return
            waited = time.monotonic() - start
            if waited > said + SILENCE:
                said = waited
                missing = [rank for rank, state in zip(self.everybody, states, strict=True) if state.ended is None]
                _say(f"rank {self.rank} has ended, and has waited {waited:.0f} s for rank(s) {missing} to end")
            time.sleep(0.02)


def first_difference(found: dict[int, list[Note]]) -> str | None:
    """What the ranks do at the first place where they differ; None where they agree."""
    longest = max(len(notes) for notes in found.values())
    for place in range(longest):
        notes = {rank: notes[place] if place < len(notes) else None for rank, notes in found.items()}
        if len({None if note is None else note.what for note in notes.values()}) > 1:
            said = [
                f"rank {rank}: {f'{note.what} at {note.line}' if note else 'nothing more in this step'}"
                for rank, note in sorted(notes.items())
            ]
            return f"The first difference, collective {place + 1}: " + "; ".join(said)
    return None


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


def end(failure: str | None) -> None:
    """This process's part is over."""
    _own[0].end(failure)
