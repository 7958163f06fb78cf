"""Programs are kept between runs, where nobody has decided otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import torch, surestep, jax
from surestep.execute import cache
cache._MIN_SECONDS = 0.0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.linspace(0, 1, 60, device="xla").reshape(6, 10)
    with surestep.step():
        y = torch.softmax(x @ x.T, -1).sum()
    print(round(y.item(), 3), jax.config.jax_compilation_cache_dir, sum("compiled programs" in str(w.message) for w in caught))
"""


def run(home, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_") and name != "XDG_CACHE_HOME"}
    environment |= {"XDG_CACHE_HOME": str(home), **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def files(home):
    return sorted(home.rglob("*-cache"))


def test_kept_and_found_again(tmp_path):
    first, _ = run(tmp_path)
    assert first == ["6.0", str(tmp_path / "surestep" / "xla"), "0"]
    kept = files(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in kept}
    assert kept
    assert run(tmp_path)[0] == first
    assert {file: file.stat().st_mtime_ns for file in files(tmp_path)} == before


def test_a_damaged_file_is_compiled_anew(tmp_path):
    first, _ = run(tmp_path)
    for file in files(tmp_path):
        file.write_bytes(b"no program")
    found, _ = run(tmp_path)
    assert found[0] == first[0]


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file")[0] == ["6.0", "None", "1"]


@pytest.mark.parametrize("own", [False, True], ids=["off", "another place"])
def test_jaxs_variables_win(tmp_path, own):
    place = tmp_path / "own"
    variables = {"JAX_COMPILATION_CACHE_DIR": str(place)} if own else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    assert run(tmp_path / "other", **variables)[0] == ["6.0", str(place) if own else "None", "0"]
    assert not (tmp_path / "other").exists()
