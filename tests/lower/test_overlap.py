"""A part of a value is overwritten by something that is made of the same value."""

from __future__ import annotations

import pytest
import torch

import surestep
from both import same
from surestep.lower.overlap import overlapping

SHIFTS = {
    "down": lambda x: x[:, 1:].copy_(x[:, :-1].clone()),
    "up": lambda x: x[:, :-1].copy_(x[:, 1:].clone()),
    "of what it was": lambda x: x[:, 1:].copy_(x[:, :-1] * 2 + 1),
    "turned": lambda x: x[1:].copy_(x[:1].flip(1)),
    "added": lambda x: x[:, 1:].add_(x[:, :-1].clone()),
    "twice": lambda x: (x[:, 1:].copy_(x[:, :-1].clone()), x[:, :, 1:].copy_(x[:, :, :-1].flip(0))),
}


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("copied", [False, True], ids=["itself", "a copy"])
def test_a_shift_reads_what_was_there_before(shift, copied):
    def shifted(zero):
        x = (torch.arange(24.0, device=zero.device) + zero).view(2, 3, 4)
        x = x.clone() if copied else x
        shift(x)
        return x.reshape(1, 6, 4), x + 1

    same(shifted, torch.zeros(()))


@pytest.mark.parametrize("scatter", [lambda x: x.slice_scatter(x[:, :-1], 1, 1, 3), lambda x: x.select_scatter(x[:, 0], 1, 1)])
def test_a_scattered_part_reads_what_was_there_before(scatter):
    same(lambda x: scatter(x.view(2, 3, 4)).view(-1), torch.arange(24.0))


def test_two_that_are_the_same_to_xla():
    def shifted(zero):
        x, y = (torch.arange(12.0, device=zero.device).view(3, 4) for _ in range(2))
        x[1:] = y[:-1]
        return x.view(-1)

    same(shifted, torch.zeros(()))


FOUND = {
    "a shift": (lambda x, y: x[1:].copy_(x[:-1].clone()), True),
    "in place, of another part": (lambda x, y: x[1:].add_(x[:-1].clone()), True),
    "a row of what it makes": (lambda x, y: x[0].copy_(x.sum(0)), True),
    "in place": (lambda x, y: x[1:].add_(y), False),
    "in place, by the operator": (lambda x, y: x.__setitem__(0, x[0].add_(y)), False),
    "of another": (lambda x, y: x[1:].copy_(y.exp()), False),
    "a number": (lambda x, y: x[1:].fill_(2), False),
    "nothing": (lambda x, y: x[1:].zero_(), False),
    "where it is small": (lambda x, y: x[1:].masked_fill_(y < 0.5, 0), False),
}


@pytest.mark.parametrize("case", FOUND)
def test_only_such_writes_are_lowered_another_way(case):
    write, found = FOUND[case]
    columns = 3 + list(FOUND).index(case)  # each its own: an offset that was seen to change is an input of the program
    x, y = torch.ones(4, columns, device="xla"), torch.ones(columns, device="xla").cos_()
    x.cos_()
    surestep.sync()
    write(x, y)
    assert bool(overlapping(x._storage.trace.place.records())) == found
