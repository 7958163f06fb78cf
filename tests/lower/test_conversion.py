"""Copies, casts and choices against CPU eager."""

from __future__ import annotations

import pytest
import torch
from elementwise import Elementwise

from both import same

aten = torch.ops.aten
FLOATS = torch.tensor([0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 200.7, -200.7, 70000.0])
EXTREMES = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
)

FAMILY = Elementwise(
    "conversion",
    ops=("clone", "masked_fill", "where", "to", "byte", "bool", "double", "int"),
    cases={
        "_to_copy.default from float": lambda: [FLOATS.to(dtype) for dtype in DTYPES],
        "_to_copy.default from double": lambda: [FLOATS.double().to(dtype) for dtype in DTYPES],
        "_to_copy.default extremes": lambda: [EXTREMES.to(dtype) for dtype in (torch.bool, torch.int32, torch.int64, torch.bfloat16)],
        "_to_copy.default from int": lambda: [torch.tensor([0, -1, 300, 2**40]).to(dtype) for dtype in DTYPES],
        "_to_copy.default from complex": lambda: aten._to_copy(torch.tensor([1.5 + 2j, 0j, 2j]), dtype=torch.bool),
        "copy.default": lambda: aten.copy(torch.zeros(2, 3, dtype=torch.int32), torch.tensor([1.7, -1.7, 3.0])),
        "where.self promotes": lambda: torch.where(torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor(0.5)),
        "where.self byte": lambda: aten.where.self(
            torch.tensor([2, 0], dtype=torch.bool), torch.ones(2, dtype=torch.bfloat16), torch.zeros(())
        ),
        "masked_fill.Scalar int": lambda: torch.arange(4).masked_fill(torch.tensor([True, False, True, False]), 7.9),
        "masked_fill.Scalar lowest": lambda: torch.ones(2, 2).masked_fill(torch.tensor([True, False]), -float("inf")),
        "masked_fill.Tensor": lambda: torch.ones(2, 2).masked_fill(torch.tensor([True, False]), torch.tensor(3)),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz])
def test_what_eight_bits_cant_hold(dtype):
    numbers = torch.tensor([1.0, 448.0, 464.1, -500.0, 6e4, -1e9, float("inf"), float("nan")])
    same(lambda x: (x.to(dtype).float(), x.half().to(dtype).float(), x[:5].int().to(dtype).float()), numbers)
