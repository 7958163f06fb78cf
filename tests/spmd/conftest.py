"""These tests are run by tests/test_spmd.py, in processes of their own with 1, 2, 4 and 8 devices: SPMD can't be turned off again."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("XLA_USE_SPMD") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def devices() -> int:
    import surestep.torch_xla.runtime as xr

    return xr.global_runtime_device_count()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
