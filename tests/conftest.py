"""What all tests share."""

import datetime
import os
import zlib

import pytest

import surestep

# What is tested is what is compiled now. (JAX reads this when it is imported, at the device's first use.)
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")


# Families of many alike cases, of which `make test` runs a part that changes with the date; `make test-all` runs them whole.
SLICED = (
    "tests/conformance/test_found.py",
    "tests/control/test_scan.py::test_functions_of_all_kinds",
    "tests/lower/",
    "tests/loop/test_updates.py",
    "tests/parallel/",
    "tests/torch_xla/test_fsdp.py::test_",
    "tests/torch_xla/test_zero.py::test_",
    "tests/replay/test_stale.py::test_verified",
    "tests/tensor/test_bounds.py",
    "tests/tensor/test_copies.py",
    "tests/tensor/test_ctc.py",
    "tests/tensor/test_distributions.py",
    "tests/tensor/test_generators.py",
    "tests/tensor/test_linear.py",
    "tests/tensor/test_random.py",
    "tests/test_spmd.py",
    "tests/training/test_optimizers.py",
)
PARTS = 4


def pytest_addoption(parser):
    parser.addoption("--slice", action="store_true", help="of families of many cases, only the part of today")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slice"):
        return
    today = datetime.datetime.now(datetime.UTC).date().toordinal() % PARTS
    chosen, others = [], []
    for item in items:
        sliced = item.nodeid.startswith(SLICED) and zlib.crc32(item.nodeid.encode()) % PARTS != today
        (others if sliced else chosen).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def metrics():
    """Gives the metrics since the test began: call it."""
    surestep.clear_metrics()
    return surestep.metrics
