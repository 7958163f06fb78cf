"""Counters and timings."""

import json

import pytest
import torch

import surestep
from surestep.observe import events, summary
from surestep.observe.events import Cause, Event
from surestep.observe.frames import Line
from surestep.observe.metrics import Metrics, Place

LINE = Line("/somewhere/train.py", 12, "main")
OTHER = Line("/somewhere/train.py", 20, "main")


def boundary(cause, line=LINE, seconds=0.25):
    return Event("boundary", line, {"cause": cause, "program": "program_1", "values": 10, "seconds": seconds})


def fed(*given):
    metrics = Metrics()
    for event in given:
        metrics._add(event)
    return metrics


def test_a_loop_is_counted(metrics):
    x = torch.ones(4, device="xla")
    for _ in range(3):
        with surestep.step():
            x = x * 2
    assert x.tolist() == [8.0] * 4
    found = metrics().to_dict()
    assert found["boundaries"] == {"start of step()": 1, "end of step()": 3}
    assert (found["steps"], found["programs"], found["runs"], found["transfers_out"]) == (3, 2, 4, 1)
    assert found["compile_seconds"] > 0 and found["bytes_out"] == 16


def test_bytes_in(metrics):
    torch.ones(4, dtype=torch.float64).to("xla")
    assert (metrics().bytes_in.count, metrics().bytes_in.total) == (1, 32)


def test_what_was_given_out_doesnt_change(metrics):
    before = metrics()
    torch.ones(4).to("xla")
    assert before.bytes_in.count == 0 and metrics().bytes_in.count == 1


def test_clearing(metrics):
    torch.ones(4).to("xla")
    surestep.clear_metrics()
    assert metrics().to_dict() == Metrics().to_dict()


def test_implicit_boundaries_have_cause_and_line():
    found = fed(boundary(Cause.VALUE), boundary(Cause.VALUE), boundary(Cause.SYNC), boundary(Cause.PRINT, None))
    assert found.to_dict()["implicit_boundaries"] == [
        {"cause": "a value was read", "line": "/somewhere/train.py:12", "count": 2},
        {"cause": "a tensor was printed", "line": None, "count": 1},
    ]
    assert found.boundaries == {Cause.VALUE: 2, Cause.SYNC: 1, Cause.PRINT: 1}


def test_fallbacks_have_operation_and_line():
    found = fed(*[Event("fallback", LINE, {"operation": "aten.foo.default", "cause": Cause.FALLBACK})] * 3)
    assert found.to_dict()["fallbacks"] == [{"operation": "aten.foo.default", "line": "/somewhere/train.py:12", "count": 3}]


def test_steps():
    assert fed(boundary(Cause.STEP), boundary(Cause.STEP), boundary(Cause.SYNC)).steps == 2
    assert fed(boundary(Cause.OPTIMIZER_STEP), boundary(Cause.SYNC)).steps == 1
    assert fed(boundary(Cause.LOADER), boundary(Cause.LOADER), boundary(Cause.SYNC)).steps == 2
    assert fed(boundary(Cause.SYNC)).steps == 1


def test_a_sync_right_after_makes_the_optimizers_boundary_the_users_own():
    nothing = Event("nothing_pending", LINE, {"cause": Cause.SYNC})
    found = fed(*[boundary(Cause.OPTIMIZER_STEP), nothing] * 3)
    assert found.implicit == {} and found.steps == 3
    assert fed(*[boundary(Cause.OPTIMIZER_STEP), boundary(Cause.REPLICAS), nothing] * 3).implicit == {}
    found = fed(boundary(Cause.OPTIMIZER_STEP), boundary(Cause.VALUE, OTHER), nothing)
    assert found.implicit == {Place(Cause.OPTIMIZER_STEP.value, LINE): 1, Place(Cause.VALUE.value, OTHER): 1}


def test_flat_is_numbers_by_name():
    found = fed(boundary(Cause.VALUE, seconds=0.5)).flat()
    assert found["xla/runs"] == 1 and found["xla/run_seconds"] == 0.5 and found["xla/implicit_boundaries"] == 1
    assert all(isinstance(value, (int, float)) for value in found.values())
    json.dumps(found)


def test_timings_keep_the_last_samples():
    metrics = fed(*[boundary(Cause.STEP)] * 2000)
    assert (metrics.run.count, metrics.run.total, len(metrics.run.samples)) == (2000, 500.0, 1024)


def test_a_metrics_listener_that_raised_would_be_dropped():
    """What the core emits is what the metrics read: else the stream would drop them, and count nothing from then on."""
    from surestep.observe.metrics import _collect

    torch.ones(2, device="xla").nonzero()
    assert _collect in events._listeners


def test_printed_it_is_a_table():
    compiled = Event("compile", LINE, {"program": "program_1", "lower_seconds": 0.5, "compile_seconds": 1.0})
    out = Event("transfer_out", LINE, {"nbytes": 1_500_000, "seconds": 0.125})
    fallback = Event("fallback", LINE, {"operation": "aten.foo.default", "cause": Cause.FALLBACK})
    found = fed(compiled, *[boundary(Cause.STEP)] * 1199, boundary(Cause.VALUE), out, fallback)
    assert repr(found) == "<Metrics: 1199 steps, 1200 runs, 1 programs>"
    assert (
        str(found)
        == """\
training steps       1,199
programs compiled        1    1.50 s
runs of programs     1,200  300.00 s
numbers made inputs      0
traces forgotten         0

copies           count    size    time
to the device        0     0 B  0.00 s
from the device      1  1.5 MB  0.12 s

boundaries        count
end of step()     1,199
a value was read      1  implicit

implicit boundaries  count  at
a value was read         1  /somewhere/train.py:12

host fallbacks    count  at
aten.foo.default      1  /somewhere/train.py:12"""
    )


def test_a_table_of_nothing_has_no_empty_sections():
    assert "boundaries" not in str(Metrics()) and "fallbacks" not in str(Metrics())


@pytest.mark.parametrize(("size", "shown"), [(999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (3e12, "3,000.0 GB")])
def test_sizes_have_their_unit(size, shown):
    assert shown in str(fed(Event("transfer_out", LINE, {"nbytes": size})))


def test_summary_lines():
    compiled = Event("compile", LINE, {"program": "program_1", "lower_seconds": 0.5, "compile_seconds": 1.0})
    found = fed(compiled, boundary(Cause.STEP), boundary(Cause.VALUE))
    assert summary.lines(found) == [
        "1 step, 2 runs in 0.50 s, 1 program compiled in 1.50 s",
        "1 implicit boundary:",
        "  1 x a value was read, at /somewhere/train.py:12",
        "0 host fallbacks",
    ]


def test_a_long_list_is_cut():
    lines = [Line("/somewhere/train.py", number, "main") for number in range(12)]
    found = summary.lines(fed(*(boundary(Cause.VALUE, line) for line in lines)))
    assert found[1] == "12 implicit boundaries:"
    assert found[-2] == "  4 more, at 4 other places"
    assert len(found) == 12


def test_nothing_is_shown_where_the_device_wasnt_used(capsys):
    summary.show(Metrics())
    assert capsys.readouterr() == ("", "")
