"""The recorder: what a cut runs, gives back, and keeps within bounds."""

import gc
import weakref

import pytest
import torch
from torch import nn

import surestep
from surestep.observe.events import Cause, listen
from surestep.tensor.devices import recorders
from surestep.trace.patience import Patience
from surestep.trace.trie import Trie


@pytest.fixture
def events():
    found = []
    stop = listen(found.append)
    yield lambda name: [event for event in found if event.name == name]
    stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No step was seen yet, and no loop."""
    for recorder in recorders():
        monkeypatch.setattr(recorder, "patience", Patience())
        monkeypatch.setattr(recorder, "anchor", None)
        recorder.begin()


def test_only_what_is_still_wanted_is_computed(events):
    x = torch.ones(4).to("xla")
    kept = (x * 2).exp()
    del x
    surestep.sync()
    (compiled,) = events("compile")
    assert compiled.data["outputs"] == 1 and kept.tolist() == pytest.approx([7.389056] * 4)


def test_a_boundary_with_nothing_pending_runs_nothing(metrics):
    surestep.sync()
    with surestep.step():
        pass
    assert metrics().run.count == 0


def test_each_boundary_has_its_cause_and_line(events):
    x = torch.ones(2, device="xla")
    surestep.sync()
    (x + 1).tolist()
    with surestep.step():
        x + 1
        y = x * 2
    boundaries = [(event.data["cause"], event.line.file, event.line.function) for event in events("boundary")]
    here = (__file__, "test_each_boundary_has_its_cause_and_line")
    assert boundaries == [(Cause.SYNC, *here), (Cause.VALUE, *here), (Cause.STEP, *here)] and y is not None


def test_donated_memory_is_reused_and_the_values_are_right():
    weight, momentum = torch.ones(1000).to("xla"), torch.zeros(1000).to("xla")
    held = weight * 1
    surestep.sync()
    old = [weight._storage.array, momentum._storage.array]
    momentum.mul_(0.9).add_(weight)
    weight.sub_(momentum, alpha=0.1)
    surestep.sync()
    assert [array.is_deleted() for array in old] == [True, True]
    assert weight[0].item() == pytest.approx(0.9) and momentum[0].item() == 1 and held[0].item() == 1


def test_memory_of_a_loop_does_not_grow():
    import jax

    model = nn.Linear(8, 8).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.ones(4, 8).to("xla")

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        gc.collect()
        return len(jax.live_arrays()), recorders()[0].trie.places

    run(5)
    assert run(5) == run(50)


def test_an_endless_trace_is_cut_at_one_place_of_the_loop(metrics):
    model, total = nn.Linear(4, 4).to("xla"), torch.zeros((), device="xla")
    x = torch.ones(2, 4).to("xla")
    with torch.no_grad():
        for _ in range(1000):
            total += model(x).sum()
    assert metrics().boundaries[Cause.LIMIT] >= 3 and metrics().compile.count <= 4
    expected = 1000 * model(x).sum().item()
    assert total.item() == pytest.approx(expected, rel=1e-3)


def test_a_long_step_is_cut_at_first_and_one_program_then(metrics):
    """Its layers pass the anchor as an endless loop does, but it comes to a boundary of its own."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(300))).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(1, 2).to("xla")

    def cuts(steps):
        before = metrics().boundaries[Cause.LIMIT]
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            surestep.sync()
        return metrics().boundaries[Cause.LIMIT] - before

    assert cuts(2) >= 1
    programs = metrics().compile.count
    assert cuts(4) == 0 and metrics().compile.count <= programs + 1


def test_a_loop_without_boundaries_is_still_cut_each_time_round(metrics):
    x = torch.zeros(2).to("xla")
    for _ in range(3):
        for _ in range(8000):
            x.add_(1)
        surestep.sync()
    assert metrics().boundaries[Cause.LIMIT] >= 3 * 6 and x.tolist() == [24000, 24000]


def test_inside_a_step_nothing_is_cut_before_the_hard_limit(metrics):
    x = torch.zeros(2).to("xla")
    with surestep.step():
        for _ in range(1500):
            x.add_(1)
    assert metrics().boundaries[Cause.LIMIT] == 0 and x.tolist() == [1500, 1500]


def test_what_lives_longer_by_chance_does_not_compile_again(metrics):
    """Activations in a reference cycle die when the collector runs."""
    weight = torch.ones(4).to("xla")

    def step(cycle):
        activation = weight * 2
        activation.exp_()
        weight.add_(activation, alpha=1e-3)
        if cycle:
            holder = [activation]
            holder.append(holder)

    gc.collect()
    gc.disable()
    try:
        for cycle in (True, False, True, False):
            with surestep.step():
                step(cycle)
    finally:
        gc.enable()
    assert metrics().compile.count <= 2


def test_the_trie_starts_again_when_it_is_full(monkeypatch, events):
    x = torch.ones(2, device="xla")
    surestep.sync()
    monkeypatch.setattr(Trie, "LIMIT", 0)
    x.add_(1)
    surestep.sync()
    assert events("evicted") and x.tolist() == [2, 2]
    x.add_(1)
    assert x.tolist() == [3, 3]


def test_dead_tensors_take_their_storage_along():
    tensor = torch.ones(2, device="xla")
    storage = weakref.ref(tensor._storage)
    view = tensor[1:]
    del tensor
    assert storage() is not None and view.tolist() == [1]
    del view
    gc.collect()
    assert storage() is None


def test_programs_are_bounded_and_found_again_by_compiling(monkeypatch, events):
    monkeypatch.setattr(Trie, "PROGRAMS", 5)
    recorders()[0].trie.clear()  # of what other tests have left, one is forgotten for one that is new
    for size in (*range(1, 12), 1):
        assert torch.ones(size, device="xla").mul(3).sum().item() == 3 * size
    assert len(recorders()[0].trie.programs) == 5
    assert len(events("evicted")) >= 6


def test_the_way_to_an_evicted_program_is_forgotten(monkeypatch):
    """Records hold their lowerings: without this, a loop over other shapes at each step kept them all."""
    monkeypatch.setattr(Trie, "PROGRAMS", 5)
    recorder = recorders()[0]
    recorder.trie.clear()
    places = []
    for size in [*range(3000, 3040), 3000, 3001]:
        with surestep.step():
            x = torch.arange(size, dtype=torch.float32, device="xla") * 2 + 1
        assert x[-1].item() == 2 * size - 1
        places.append(recorder.trie.places)
    assert max(places[20:]) <= max(places[10:20])
