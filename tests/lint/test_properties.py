"""Whatever the program: check never raises, what it mends parses; what migrate writes parses, and is what it would write again."""

import ast
import json

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from programs import programs

from surestep.lint.engine import Selection, check_file
from surestep.lint.migrate import migrate
from surestep.lint.rules import RULES
from surestep.lint.source import Source

few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def parses(text):
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


@few
@given(programs())
def test_check_never_raises_and_mends_to_python(text):
    checked = check_file("random.py", text.encode(), Selection(), fix=True, unsafe=True)
    assert (checked.error is None) == parses(text)
    if checked.source is not None:
        assert parses(checked.source.text)


@few
@given(programs())
def test_migrate_parses_and_twice_is_once(text):
    assume(parses(text))
    for target in ("torch_xla", "surestep"):
        once = migrate(Source.read("random.py", text.encode()), target)
        assert parses(once.source.text), once.source.text
        twice = migrate(once.source, target)
        assert twice.source.text == once.source.text
        assert (twice.changes, twice.marks) == (0, 0)


@few
@given(programs())
def test_a_notebook_is_what_its_cells_are(text):
    assume(parses(text))
    cells = [
        {"cell_type": "markdown", "source": ["# a title"]},
        *({"cell_type": "code", "source": part} for part in (text, "%matplotlib inline\n!pip install x")),
    ]
    notebook = json.dumps({"cells": cells, "nbformat": 4}).encode()
    checked = check_file("random.ipynb", notebook, Selection(), fix=True, unsafe=True)
    assert checked.source is not None
    once = migrate(Source.read("random.ipynb", notebook))
    for after in (checked.source, once.source):
        cells = json.loads(after.encode(notebook))["cells"]
        assert cells[0]["source"] == ["# a title"]
        assert cells[2]["source"] == "%matplotlib inline\n!pip install x"
        assert parses(cells[1]["source"])
    assert migrate(once.source).source.text == once.source.text


def test_the_random_programs_are_worth_something():
    """All in all they break many rules."""
    reached = set()

    @settings(few, max_examples=40, derandomize=True)
    @given(programs())
    def reach(text):
        reached.update(finding.code for finding in check_file("random.py", text.encode(), Selection()).findings)

    reach()
    assert len(reached) > len(RULES) / 3, reached


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 1500),
    st.sampled_from([("x = 1", " + xm.get_ordinal()"), ("x", ".a"), ("x", ".f()"), ("x", "[0]"), ("if a: pass", "\nelif a: pass")]),
)
def test_deep_nesting_is_checked_or_told(depth, parts):
    begin, more = parts
    data = ("import torch_xla.core.xla_model as xm\n" + begin + more * depth + "\n").encode()
    checked = check_file("deep.py", data, Selection())
    assert checked.source is not None or "recursion" in checked.error or "nested" in checked.error
    assert depth > 100 or checked.source is not None
