"""The agreement of processes, here threads, about what they do together; cut into programs at other places by each."""

import threading
from collections import Counter, defaultdict

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surestep.execute.world import World
from surestep.parallel import agreement
from surestep.parallel.agreement import Agreement, Disagreement, Note

RANKS = 3
GROUPS = [(0, 1, 2), (0, 1), (1, 2)]


class Run:
    """Runs each rank's programs, where a collective waits until all in its group have come to it, as XLA's do."""

    def __init__(self, programs):
        self.programs = programs
        self.store = dist.HashStore()
        self.met = defaultdict(dict)  # by group and number: what each rank does there
        self.errors = {}
        self.changed = threading.Condition()
        self.over = False

    def to_the_end(self):
        threads = [threading.Thread(target=self.rank, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)

    def rank(self, rank):
        own, counts = Agreement(self.store, World(rank, RANKS, rank, RANKS)), Counter()
        try:
            for program in self.programs[rank]:
                own.check(program)
                for note in program:
                    self.collective(rank, note, counts[note.group])
                    counts[note.group] += 1
            own.end(None)
        except Disagreement as error:
            self.errors[rank] = str(error)
            own.end(str(error))

    def collective(self, rank, note, number):
        with self.changed:
            met = self.met[note.group, number]
            met[rank] = note.what
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(met) == len(note.group) or self.over)
            if len(met) < len(note.group):
                raise Disagreement("ended while it waited")

    def exit(self, code):
        """What ends a process that waits inside XLA."""
        with self.changed:
            self.over = True
            self.changed.notify_all()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(agreement, "LOOKS", 0.01)
    monkeypatch.setattr(agreement, "GRACE", 0.3)


@st.composite
def sequences(draw, groups):
    """For each rank its programs. All do the same, a few collectives again and again."""
    loop = draw(st.lists(st.tuples(st.sampled_from(groups), st.sampled_from("abc")), min_size=1, max_size=5))
    everything = draw(st.lists(st.sampled_from(loop), max_size=4)) + loop * draw(st.integers(1, 4))
    return [
        draw(cut([Note(group, what, f"line {place}") for place, (group, what) in enumerate(everything) if rank in group]))
        for rank in range(RANKS)
    ]


@st.composite
def cut(draw, notes):
    places = sorted(draw(st.sets(st.integers(1, max(1, len(notes) - 1)), max_size=6))) if len(notes) > 1 else []
    return [part for part in (notes[start:end] for start, end in zip([0, *places], [*places, len(notes)], strict=True)) if part]


ENDLESS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=25, **ENDLESS)
@given(programs=sequences(GROUPS))
def test_those_that_do_the_same_are_not_held_up(quick, programs):
    run = Run(programs)
    run.to_the_end()
    assert run.errors == {}


@settings(max_examples=25, **ENDLESS)
@given(programs=sequences(GROUPS[:1]), rank=st.integers(0, RANKS - 1), data=st.data())
def test_what_differs_is_said_and_never_begun(quick, programs, rank, data):
    places = [(program, place) for program in programs[rank] for place in range(len(program))]
    number = data.draw(st.integers(0, len(places) - 1))
    program, place = places[number]
    program[place] = program[place]._replace(what="d")
    run = Run(programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement.os, "_exit", run.exit)
        run.to_the_end()
    assert any(f"The first difference is collective {number + 1} of this run: " in error for error in run.errors.values())
    assert all(len(met) < RANKS or len(set(met.values())) == 1 for met in run.met.values())
