"""What all tests share."""

import os

import pytest

import surestep

# What is tested is what is compiled now. (JAX reads this when it is imported, at the device's first use.)
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")


@pytest.fixture
def metrics():
    """Gives the metrics since the test began: call it."""
    surestep.clear_metrics()
    return surestep.metrics
