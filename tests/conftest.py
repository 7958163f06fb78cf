"""What all tests share."""

import pytest

import surestep


@pytest.fixture
def metrics():
    """Gives the metrics since the test began: call it."""
    surestep.clear_metrics()
    return surestep.metrics
