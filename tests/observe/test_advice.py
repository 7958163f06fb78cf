"""Advice on implicit boundaries: once a line, at the third time."""

import logging

import pytest

from surestep.observe import advice
from surestep.observe.events import Cause, Event
from surestep.observe.frames import Line


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr(advice, "_seen", type(advice._seen)())
    monkeypatch.setattr(advice, "_last_step", [])
    caplog.set_level(logging.WARNING, logger="surestep")

    def feed(*given):
        caplog.clear()
        for name, cause, line in given:
            advice._advise(Event(name, Line("train.py", line, "main"), {"cause": cause}))
        return caplog.messages

    return feed


def test_a_value_read_in_a_loop(said):
    messages = said(*[("boundary", Cause.VALUE, 7)] * 50)
    assert len(messages) == 1
    assert messages[0].startswith("surestep: train.py:7: reading a value cuts the step in two")
    assert "add_step_closure" in messages[0]


def test_one_read_at_the_end_is_no_mistake(said):
    assert said(("boundary", Cause.VALUE, 7), ("boundary", Cause.VALUE, 7)) == []


def test_each_line_by_itself(said):
    assert len(said(*[("boundary", Cause.VALUE, 7), ("boundary", Cause.PRINT, 8)] * 3)) == 2


def test_what_the_user_wrote_needs_no_advice(said):
    assert said(*[("boundary", cause, 7) for cause in (Cause.SYNC, Cause.STEP, Cause.LOADER)] * 5) == []


def test_a_forgotten_sync(said):
    messages = said(*[("boundary", Cause.OPTIMIZER_STEP, 7)] * 5)
    assert len(messages) == 1
    assert "train.py:7" in messages[0] and "with torch_xla.step():" in messages[0]


def test_a_sync_right_after_the_optimizers_step(said):
    step, sync = ("boundary", Cause.OPTIMIZER_STEP, 7), ("nothing_pending", Cause.SYNC, 8)
    assert said(*[step, sync] * 5) == []
    assert said(*[step, ("boundary", Cause.REPLICAS, 7), sync] * 5) == []
