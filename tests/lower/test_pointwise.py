"""Arithmetic, comparisons, logic and bits against CPU eager."""

from __future__ import annotations

import pytest
import torch
from elementwise import Elementwise

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL).T.contiguous()
LEFT, RIGHT = PAIRS[0], PAIRS[1]
INTS = torch.tensor([-7, -3, -2, -1, 0, 1, 2, 3, 7])
DIVIDENDS, DIVISORS = torch.cartesian_prod(INTS, INTS[INTS != 0]).T.contiguous()
BYTES = torch.tensor([0, 1, 2, 200, 255], dtype=torch.uint8)
BITS = torch.tensor([0, 1, 5, -5, 2**31 - 1, -(2**31)], dtype=torch.int32)
SHIFTS = torch.tensor([0, 1, 31, 32, -1, 5], dtype=torch.int32)

FAMILY = Elementwise(
    "pointwise",
    ops=(
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "angle",
        "bitwise_and",
        "bitwise_left_shift",
        "bitwise_not",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "clamp",
        "clamp_max",
        "clamp_min",
        "conj_physical",
        "copysign",
        "div",
        "eq",
        "float_power",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "gcd",
        "ge",
        "gt",
        "heaviside",
        "isinf",
        "isnan",
        "isneginf",
        "isposinf",
        "lcm",
        "le",
        "lerp",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "lt",
        "maximum",
        "minimum",
        "mul",
        "nan_to_num",
        "ne",
        "neg",
        "nextafter",
        "pow",
        "reciprocal",
        "remainder",
        "rsub",
        "__rpow__",
        "__rmod__",
        "__rsub__",
        "sgn",
        "sign",
        "signbit",
        "sub",
    ),
    cases={
        "add.Scalar": lambda: aten.add.Scalar(torch.ones(3, dtype=torch.bfloat16), 0.1),
        "add.Scalar alpha": lambda: aten.add.Scalar(INTS, 2, 3),
        "add.Tensor 0-d gives way": lambda: torch.ones(3, dtype=torch.float16) + torch.tensor(0.1, dtype=torch.float64),
        "add.Tensor byte wraps": lambda: BYTES + -1,
        "add.Tensor empty": lambda: torch.ones(0, 3) + torch.ones(1, 3),
        "sub.Scalar": lambda: aten.sub.Scalar(INTS, 2.5, 2),
        "rsub.Scalar": lambda: aten.rsub.Scalar(INTS, 2, 2),
        "mul.Scalar": lambda: aten.mul.Scalar(torch.ones(3, dtype=torch.bfloat16), 0.1),
        "mul.Tensor bool and number": lambda: torch.tensor([True, False]) * 3,
        "div.Scalar": lambda: aten.div.Scalar(INTS, 3),
        "div.Scalar_mode": lambda: [aten.div.Scalar_mode(INTS, 3, rounding_mode=mode) for mode in (None, "floor", "trunc")],
        "div.Tensor_mode int": lambda: [torch.div(DIVIDENDS, DIVISORS, rounding_mode=mode) for mode in (None, "floor", "trunc")],
        "div.Tensor_mode special": lambda: [torch.div(LEFT, RIGHT, rounding_mode=mode) for mode in (None, "floor", "trunc")],
        "div.Tensor_mode broadcast": lambda: torch.div(torch.arange(1.0, 60).reshape(-1, 1), torch.arange(0.5, 9), rounding_mode="trunc"),
        "div.Tensor_mode bfloat16": lambda: torch.div(LEFT.bfloat16(), RIGHT.bfloat16(), rounding_mode="floor"),
        "floor_divide.Scalar": lambda: aten.floor_divide.Scalar(INTS, -2),
        "remainder.Tensor int": lambda: torch.remainder(DIVIDENDS, DIVISORS),
        "remainder.Tensor special": lambda: torch.remainder(LEFT, RIGHT),
        "remainder.Scalar": lambda: [torch.remainder(SPECIAL, -1.5), torch.remainder(INTS, -3)],
        "gt.Scalar": lambda: [INTS > 1.5, SPECIAL > 0],
        "le.Scalar": lambda: [INTS <= 1.5, SPECIAL <= 0],
        "remainder.Scalar_Tensor": lambda: torch.remainder(7, DIVISORS),
        "fmod.Tensor int": lambda: torch.fmod(DIVIDENDS, DIVISORS),
        "fmod.Tensor special": lambda: torch.fmod(LEFT, RIGHT),
        "fmod.Scalar": lambda: torch.fmod(SPECIAL, -1.5),
        "pow.Tensor_Scalar fixed": lambda: [SPECIAL**p for p in (0, 1, 2, 3, -1, -2, 4, 2.5)] + [SPECIAL.abs() ** p for p in (0.5, -0.5)],
        "pow.Tensor_Scalar int": lambda: [INTS**p for p in (0, 1, 2, 3, 5, 1.5, 70)],
        "pow.Tensor_Scalar byte": lambda: BYTES**3,
        "pow.Tensor_Tensor int": lambda: torch.tensor([1, -1, 1, -1, 2, 0])[:, None] ** torch.tensor([-3, -2, 0, 64, 1001]),
        "pow.Tensor_Tensor special": lambda: torch.pow(LEFT, RIGHT),
        "pow.Scalar": lambda: [torch.pow(base, INTS.abs()) for base in (2, 0.5, 1, -3)],
        "maximum.default special": lambda: torch.maximum(LEFT, RIGHT),
        "minimum.default special": lambda: torch.minimum(LEFT, RIGHT),
        "fmax.default special": lambda: torch.fmax(LEFT, RIGHT),
        "fmin.default special": lambda: torch.fmin(LEFT, RIGHT),
        "clamp.default special": lambda: [torch.clamp(SPECIAL, *limits) for limits in ((-1, 2), (2, -1), (None, 0.5), (NAN, 1.0))],
        "clamp.default int": lambda: [torch.clamp(INTS, -2, 2), torch.clamp(INTS, -2.5, 2.5)],
        "clamp_max.default": lambda: torch.clamp_max(SPECIAL, 0.5),
        "clamp_min.default": lambda: torch.clamp_min(SPECIAL, 0.5),
        "lerp.Tensor": lambda: torch.lerp(torch.zeros(3), torch.full((3,), 1.1), torch.tensor([0.0, 0.5, 1.0])),
        "copysign.Scalar": lambda: [torch.copysign(SPECIAL, y) for y in (-0.0, 1.0, -2)],
        "copysign.Tensor special": lambda: torch.copysign(LEFT, RIGHT),
        "heaviside.default special": lambda: torch.heaviside(LEFT, RIGHT),
        "sign.default special": lambda: torch.sign(SPECIAL),
        "sgn.default complex": lambda: torch.sgn(torch.tensor([0j, 3 + 4j, -1j])),
        "angle.default special": lambda: torch.angle(SPECIAL),
        "signbit.default special": lambda: torch.signbit(SPECIAL),
        "signbit.default int": lambda: [torch.signbit(INTS), torch.signbit(BYTES), torch.signbit(torch.tensor([True, False]))],
        "isnan.default int": lambda: aten.isnan(INTS),
        "nan_to_num.default special": lambda: [torch.nan_to_num(SPECIAL), torch.nan_to_num(SPECIAL.bfloat16(), 1.0, 2.0, -2.0)],
        "nan_to_num.default complex": lambda: torch.nan_to_num(torch.complex(LEFT, RIGHT)),
        "nextafter.default special": lambda: torch.nextafter(LEFT, RIGHT),
        "nextafter.default bfloat16": lambda: torch.nextafter(torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)),
        "eq.Tensor special": lambda: [LEFT == RIGHT, LEFT != RIGHT, LEFT < RIGHT, LEFT <= RIGHT, LEFT > RIGHT, LEFT >= RIGHT],
        "lt.Scalar kinds": lambda: [
            INTS < 1.5,
            torch.ones(2, dtype=torch.bfloat16) < 1.001,
            torch.tensor([True]) < 1,
            torch.tensor(1.0) < 0.1,
        ],
        "lt.Tensor mixed": lambda: [
            torch.tensor([1, 2]) < torch.tensor([1.5]),
            torch.tensor(1.1) < torch.tensor([1.1], dtype=torch.float64),
        ],
        "logical_and.default mixed": lambda: torch.logical_and(SPECIAL, torch.arange(9)),
        "logical_not.default complex": lambda: torch.logical_not(torch.tensor([0j, 1j, 1 + 0j])),
        "bitwise_and.Scalar": lambda: aten.bitwise_and.Scalar(BITS, 6),
        "bitwise_or.Scalar": lambda: aten.bitwise_or.Scalar(BITS, 6),
        "bitwise_xor.Scalar": lambda: aten.bitwise_xor.Scalar(BITS, 6),
        "bitwise_and.Scalar_Tensor": lambda: aten.bitwise_and.Scalar_Tensor(6, BITS),
        "bitwise_or.Scalar_Tensor": lambda: aten.bitwise_or.Scalar_Tensor(6, BITS),
        "bitwise_xor.Scalar_Tensor": lambda: aten.bitwise_xor.Scalar_Tensor(6, BITS),
        "__lshift__.Tensor beyond": lambda: BITS[:, None] << SHIFTS,
        "__rshift__.Tensor beyond": lambda: BITS[:, None] >> SHIFTS,
        "__rshift__.Tensor byte": lambda: BYTES[:, None] >> torch.tensor([0, 3, 7, 8, 9], dtype=torch.uint8),
        "bitwise_left_shift.Tensor beyond": lambda: torch.bitwise_left_shift(BITS[:, None], SHIFTS),
        "bitwise_right_shift.Tensor beyond": lambda: torch.bitwise_right_shift(BITS[:, None], SHIFTS),
        "__lshift__.Scalar": lambda: BITS << 3,
        "__rshift__.Scalar": lambda: BITS >> 3,
        "bitwise_left_shift.Tensor_Scalar": lambda: aten.bitwise_left_shift.Tensor_Scalar(BITS, 3),
        "bitwise_right_shift.Tensor_Scalar": lambda: aten.bitwise_right_shift.Tensor_Scalar(BITS, 3),
        "bitwise_left_shift.Scalar_Tensor": lambda: aten.bitwise_left_shift.Scalar_Tensor(3, SHIFTS),
        "bitwise_right_shift.Scalar_Tensor": lambda: aten.bitwise_right_shift.Scalar_Tensor(3, SHIFTS),
    },
)


@pytest.mark.parametrize(("op", "dtype"), FAMILY.parameters(), ids=FAMILY.name)
def test_samples(op, dtype):
    FAMILY.check_samples(op, dtype)


@pytest.mark.parametrize("case", FAMILY.cases)
def test_case(case):
    FAMILY.check_case(case)


def test_keys():
    FAMILY.check_keys()
