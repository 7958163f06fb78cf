"""Scripts and notebooks as one text; where things are; what noqa silences."""

import json

import pytest

from surestep.lint.engine import Selection, check_file
from surestep.lint.source import Source, SourceError


def notebook(*cells):
    return json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}).encode()


@pytest.mark.parametrize(
    ("cell", "masked"),
    [
        ("%matplotlib inline", "0#################"),
        ("!pip install x \\\n   y\nz", "0#" + "#" * 14 + "\n####\nz"),
        ("x = !ls", "x = 0##"),
        ("if a:\n    !ls\n", "if a:\n    0##\n"),
        ("%%bash\nls if\n", "######\n#####\n"),
        ("%%time\nx = 1", "0#####\nx = 1"),
        ("x % 2\na != b", "x % 2\na != b"),
        ("foo?", "0###"),
    ],
)
def test_magics_are_masked(cell, masked):
    source = Source.read("a.ipynb", notebook(cell))
    assert source.python == masked + "\n"
    assert len(source.python) == len(source.text)


def test_a_finding_in_a_notebook_has_its_cell():
    data = notebook("import torch_xla.core.xla_model as xm", "x = 1\nxm.mark_step()\n")
    checked = check_file("a.ipynb", data, Selection())
    assert checked.source.place(checked.findings[0].line) == (2, 2)


def test_columns_are_characters():
    checked = check_file("a.py", "import torch_xla.core.xla_model as xm\né = 'ü'; xm.mark_step()\n".encode(), Selection())
    assert (checked.findings[0].line, checked.findings[0].column, checked.findings[0].end_column) == (2, 10, 22)


@pytest.mark.parametrize(
    ("comment", "silent"),
    [("# noqa", True), ("# noqa: XLA901", True), ("#noqa:E501,XLA901", True), ("# noqa: XLA902", False), ("# nothing", False)],
)
def test_noqa(comment, silent):
    text = f"import torch_xla.core.xla_model as xm\nxm.mark_step()  {comment}\n"
    assert (check_file("a.py", text.encode(), Selection()).findings == []) == silent


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("a.py", b"# -*- coding: nothing -*-\nxla"),
        ("a.py", b"xla = '\xff'"),
        ("a.ipynb", b"{"),
        ("a.ipynb", b"[]"),
        ("a.py", b"xla = ("),
        ("a.py", b"xla = 1\0"),
        ("a.py", b"xla = " + b"(" * 5000 + b")" * 5000),
        ("a.py", b"xla" + b".a" * 100000),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_reason(path, data):
    checked = check_file(path, data, Selection())
    assert checked.error and checked.findings == []


def test_an_encoding_is_kept():
    data = "# -*- coding: latin-1 -*-\nimport torch_xla.core.xla_model as xm\nxm.mark_step()  # é\n".encode("latin-1")
    checked = check_file("a.py", data, Selection(), fix=True)
    assert "torch_xla.sync()  # é".encode("latin-1") in checked.source.encode(data)


def test_reading_a_missing_file_of_another_kind():
    with pytest.raises(SourceError):
        Source.read("a.ipynb", b"\xff\xfe")
