"""The bug report's loops, the guide's patterns, and its anti-patterns."""

import pathlib

import pytest

from surestep.lint.engine import Selection, check, check_file
from surestep.lint.findings import Severity
from surestep.lint.source import Source

SEED = pathlib.Path(__file__).parent / "seed"


def findings(text):
    return check(Source.read("script.py", text.encode()), Selection())


def test_the_broken_loop_gets_exactly_the_boundary_rule():
    text = (SEED / "broken.txt").read_text()
    (finding,) = findings(text)
    assert (finding.code, finding.severity) == ("XLA101", Severity.ERROR)
    assert text.splitlines()[finding.line - 1].strip() == "optimizer.step()"


def test_the_broken_loop_is_mended():
    mended = check_file("script.py", (SEED / "broken.txt").read_bytes(), Selection(), fix=True, unsafe=True)
    assert mended.findings == []
    assert "for step in range(10):\n    with torch_xla.step():\n        loss = " in mended.source.text


def test_the_fixed_loop_gets_notes_only():
    """One boundary would do; and the loss is read in each step."""
    found = findings((SEED / "fixed.txt").read_text())
    assert [(finding.code, finding.severity) for finding in found] == [("XLA104", Severity.NOTE), ("XLA601", Severity.NOTE)]
    assert "One boundary a step would do" in found[0].message


@pytest.mark.parametrize("name", sorted(path.name for path in SEED.glob("pattern_*.txt")))
def test_the_patterns_are_clean(name):
    assert findings((SEED / name).read_text()) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "XLA301",
            "import torch_xla\ndevice = torch_xla.device()\ndef _mp_fn(index):\n    pass\nif __name__ == '__main__':\n    "
            "torch_xla.launch(_mp_fn)\n",
        ),
        (
            "XLA102",
            "import torch_xla\nimport torch_xla.core.xla_model as xm\nfor batch in loader:\n    with torch_xla.step():\n        "
            "model(batch).backward()\n        xm.mark_step()\n",
        ),
        ("XLA501", "import torch, torch_xla\nmodel = torch.nn.Linear(2, 2).to('xla')\ntorch.save(model.state_dict(), 'model.pt')\n"),
        (
            "XLA304",
            "import torch_xla\ndef _mp_fn(index):\n    pass\nif __name__ == '__main__':\n    torch_xla.launch(_mp_fn)\n    device = "
            "torch_xla.device()\n",
        ),
    ],
)
def test_the_anti_patterns_are_found(code, text):
    assert code in {finding.code for finding in findings(text)}
