"""Runs tests/spmd with so many devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_on_devices(devices: int) -> None:
    environment = {**os.environ, "CPU_NUM_DEVICES": str(devices), "XLA_USE_SPMD": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "spmd")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout + done.stderr
