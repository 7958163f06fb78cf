"""Tensors made from nothing against CPU eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from structured import Family

from surestep.lower.spec import Out

aten = torch.ops.aten
OPS = (
    "arange",
    "linspace",
    "logspace",
    "eye",
    "fill",
    "full",
    "full_like",
    "new_full",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
)
CASES = {
    "fill.Tensor": lambda: aten.fill.Tensor(torch.ones(2, 3), torch.tensor(4.5)),
    "zero.default": lambda: aten.zero(torch.ones(2)),
    "range.step": lambda: aten.range.step(5, 1, -1.5),
    "arange.start_step float32 needs float64": lambda: torch.arange(0, 1, 1e-5),
    "arange.start_step of bfloat16": lambda: torch.arange(-3, 40, 0.5, dtype=torch.bfloat16),
    "arange.start_step of ints": lambda: torch.arange(2**40, 2**40 + 9, 2),
    "arange.start_step empty": lambda: torch.arange(3, 3, 1),
    "linspace.default of one": lambda: torch.linspace(3, 5, 1),
    "linspace.default of none": lambda: torch.linspace(3, 5, 0),
    "tril_indices.default": lambda: [torch.tril_indices(r, c, k) for r in (0, 3) for c in (1, 5) for k in (-4, -1, 0, 2, 7)],
    "triu_indices.default": lambda: [torch.triu_indices(r, c, k) for r in (0, 3) for c in (1, 5) for k in (-4, -1, 0, 2, 7)],
}
FAMILY = Family("creation", ops=OPS, cases=CASES, unreached=("range.default", "arange.default", "arange.start"))  # composites here

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("key", ["empty.memory_format", "_efficientzerotensor.default"])
def test_memory_that_nobody_filled_is_zero(key):
    out = Out((2, 3), np.dtype(np.float32))
    assert (FAMILY.table[key].function(out, [2, 3]) == 0).all()


def test_numbers_that_stay_constant():
    FAMILY.check_lowered("arange.default", torch.arange(4.5), 4.5)
    FAMILY.check_lowered("full.default", torch.full((2,), -1, dtype=torch.uint8), [2], -1)
    FAMILY.check_lowered("arange.start", torch.arange(-2, 7), -2, 7)
    FAMILY.check_lowered("range.default", torch.arange(1.0, 6.0), 1, 5.5)
