"""Faults that the conformance run found outside of the lowerings, one test each."""

import pytest
import torch
from both import same


@pytest.mark.parametrize("operation", [torch.fmod, torch.remainder, torch.floor_divide])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_divided(operation, dtype):
    """The stand-ins that the CPU was asked with were zeros."""
    same(operation, torch.arange(5, 9).to(dtype), torch.arange(1, 5).to(dtype))


def test_pivots_are_taken():
    """They begin at one, where the stand-ins had zeros."""
    lu, pivots = torch.linalg.lu_factor(torch.eye(3) + torch.arange(9.0).reshape(3, 3))
    same(torch.lu_unpack, lu, pivots, strides=False)
    same(torch.lu_solve, torch.ones(3, 2), lu, pivots, strides=False)


@pytest.mark.filterwarnings("ignore:.*has no lowering", "ignore:.*cholesky is deprecated", "ignore:.*cuts the step")
def test_an_empty_out_tensor_grows_on_the_host():
    """The host's copy lay over an array's memory, which can't be resized."""
    x = torch.eye(3, dtype=torch.float64) * 4
    same(lambda a, out: torch.cholesky_inverse(a, out=out), x, torch.empty(0, dtype=torch.float64))


def test_a_list_of_maxima_is_written_on_the_device(metrics):
    """AMSGrad's `_foreach_maximum_`: `maximum` has no in-place form."""

    def maxima(a, b):
        torch._foreach_maximum_([a, b], [b, a])
        torch._foreach_minimum_([a, b], 2.0)

    same(maxima, torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0]))
    assert not metrics().fallbacks


def test_what_is_decomposed_refuses_to_write_into_a_dtype_that_cannot_hold_it():
    x = torch.ones(2, dtype=torch.int64, device="xla")
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.ldexp_(x)


def test_the_conjugate_in_place_is_made_on_the_device(metrics):
    same(lambda z: z.conj_physical_(), torch.tensor([1 + 2j]))
    assert not metrics().fallbacks
