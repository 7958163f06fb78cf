"""The code in the README and the user documentation runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks():
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 1
            yield pytest.param(found[1], f"{page.name}:{line}", id=f"{page.name}:{line}")


@pytest.mark.parametrize(("code", "place"), list(blocks()))
def test_it_runs(code, place, capsys):
    if "use_spmd" in code:  # which can't be turned off again
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "CPU_NUM_DEVICES": "4"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    exec(compile(code, place, "exec"), {"__name__": "__main__"})
