"""Programs: what is donated, and what a long compilation shows."""

import io
import time

import numpy as np
import pytest

from surestep.execute import program
from surestep.execute.program import Input
from surestep.observe.frames import Line

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.mark.parametrize(
    ("leaves", "outputs", "donatable", "donated"),
    [
        ([((2,), F32), ((2,), F32)], [((2,), F32)], [0, 1], {0}),  # one output has memory to take
        ([((2,), F32), ((2,), F64)], [((2,), F64), ((2,), F32)], [0, 1], {0, 1}),
        ([((2,), F32)], [((3,), F32)], [0], set()),
        ([((2,), F32), ((2,), F32)], [((2,), F32)] * 2, [1], {1}),  # the other is still wanted
    ],
)
def test_a_leaf_is_donated_where_an_output_of_its_size_takes_the_memory(leaves, outputs, donatable, donated):
    assert program._matching([Input(*leaf) for leaf in leaves], [Input(*out) for out in outputs], donatable) == donated


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("terminal", "seconds", "shown"), [(True, 0.3, True), (True, 0.0, False), (False, 0.3, False)])
def test_a_long_compilation_shows_itself_on_a_terminal_only(monkeypatch, terminal, seconds, shown):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(program._Shown, "DELAY", 0.1)
    with program._Shown("program_7", Line("train.py", 12, "main")):
        time.sleep(seconds)
    text = stream.getvalue()
    assert ("compiling program_7 (train.py:12)" in text and "compiled program_7 (train.py:12) in 0.3 s" in text) if shown else text == ""
