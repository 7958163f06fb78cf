"""Keys are exact: what Python holds for equal and is not the same program is kept apart."""

import enum

import numpy as np
import pytest
import torch

from surestep.trace.operands import add_constant, ref


def key(*values):
    found = []
    for value in values:
        add_constant(found, value)
    return tuple(found)


class Two(enum.IntEnum):
    TWO = 2


DIFFERENT = [
    1,
    1.0,
    True,
    0,
    0.0,
    -0.0,
    False,
    None,
    "1",
    1j,
    [1],
    [1.0],
    [[1]],
    [1, 1],
    float("inf"),
    torch.float32,
    torch.device("xla:0"),
    2**70,
    ref(1),
]


def test_all_are_different():
    keys = [key(value) if value is not DIFFERENT[-1] else (value,) for value in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)


@pytest.mark.parametrize("value", [float("nan"), -0.0, [1, [2.5, None]], (3, 4), torch.Size([2, 3]), 1 + 0j])
def test_equal_values_have_equal_keys(value):
    import copy

    assert key(value) == key(copy.deepcopy(value))


def test_sequences_do_not_run_into_each_other():
    assert key([1, 2], [3]) != key([1], [2, 3]) and key(torch.Size([2])) == key((2,)) == key([2])


def test_numbers_of_other_libraries_are_pythons():
    assert (
        key(np.float32(1.5)) == key(1.5)
        and key(np.int64(3)) == key(3) == key(3)
        and key(Two.TWO) == key(2)
        and key(np.bool_(True)) == key(True)
    )


def test_what_is_no_constant_is_refused():
    with pytest.raises(TypeError, match="argument of type object"):
        key(object())
