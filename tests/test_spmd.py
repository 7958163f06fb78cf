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


def processes(special: str) -> subprocess.CompletedProcess[str]:
    """Two, of four devices each."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "CPU_NUM_DEVICES": "4"}
    command = [*torchrun, str(HERE / "spmd" / "processes.py"), special]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("special", ["whole batches", "own batches"])
def test_two_processes_train_as_one(special: str) -> None:
    done = processes(special)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all is well") == 2


def test_a_process_that_computes_alone_is_said() -> None:
    done = processes("one computes alone")
    assert done.returncode != 0
    assert "Disagreement" in done.stderr
    assert "a program of" in done.stderr
    assert "processes.py" in done.stderr
