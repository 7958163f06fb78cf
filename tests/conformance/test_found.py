"""Faults that the conformance run found outside of the lowerings, one test each."""

import pytest
import torch
from both import same


@pytest.mark.parametrize("operation", [torch.fmod, torch.remainder, torch.floor_divide])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_divided(operation, dtype):
    """The stand-ins that the CPU was asked with were zeros."""
    same(operation, torch.arange(5, 9).to(dtype), torch.arange(1, 5).to(dtype))


@pytest.mark.filterwarnings("ignore:.*has no lowering", "ignore:.*cholesky is deprecated", "ignore:.*cuts the step")
def test_an_empty_out_tensor_grows_on_the_host():
    """The host's copy lay over an array's memory, which can't be resized."""
    x = torch.eye(3, dtype=torch.float64) * 4
    same(lambda a, out: torch.cholesky_inverse(a, out=out), x, torch.empty(0, dtype=torch.float64))
