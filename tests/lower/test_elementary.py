"""Elementary and special functions against CPU eager."""

from __future__ import annotations

import pytest
import torch
from elementwise import Elementwise

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -30.0, 100.0, -100.0])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL).T.contiguous()
LEFT, RIGHT = PAIRS[0], PAIRS[1]
UNARY = (
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "sigmoid",
    "erf",
    "erfc",
    "erfinv",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "sinc",
    "logit",
    "special_entr",
    "special_ndtri",
    "special_i0e",
    "special_i1e",
    "lgamma",
    "digamma",
)


def special_case(name):
    return lambda: [getattr(torch.ops.aten, name)(SPECIAL), getattr(torch.ops.aten, name)(SPECIAL[:0])]


FAMILY = Elementwise(
    "elementary",
    ops=(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "ceil",
        "complex",
        "cos",
        "cosh",
        "deg2rad",
        "digamma",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "frac",
        "frexp",
        "hypot",
        "i0",
        "igamma",
        "igammac",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logaddexp",
        "logaddexp2",
        "logit",
        "mvlgamma",
        "polar",
        "polygamma",
        "rad2deg",
        "round",
        "rsqrt",
        "sigmoid",
        "sin",
        "sinc",
        "sinh",
        "special.entr",
        "special.i0e",
        "special.i1",
        "special.i1e",
        "special.log_ndtr",
        "special.ndtri",
        "special.xlog1py",
        "special.zeta",
        "sqrt",
        "tan",
        "tanh",
        "trunc",
        "xlogy",
    ),
    cases={
        **{f"{name}.default special": special_case(name) for name in UNARY},
        "atan2.default special": lambda: torch.atan2(LEFT, RIGHT),
        "hypot.default special": lambda: torch.hypot(LEFT, RIGHT),
        "logaddexp.default special": lambda: torch.logaddexp(LEFT, RIGHT),
        "xlogy.Tensor special": lambda: torch.xlogy(LEFT, RIGHT),
        "xlogy.Scalar_Other": lambda: torch.xlogy(SPECIAL, 2.0),
        "xlogy.Scalar_Self": lambda: [torch.xlogy(0, SPECIAL), torch.xlogy(2, torch.arange(4))],
        "special_xlog1py.default special": lambda: torch.special.xlog1py(LEFT, RIGHT),
        "special_xlog1py.other_scalar": lambda: torch.special.xlog1py(SPECIAL, 2.0),
        "special_xlog1py.self_scalar": lambda: torch.special.xlog1py(0, SPECIAL),
        "special_zeta.other_scalar": lambda: torch.special.zeta(torch.tensor([0.5, 1.0, 2.0, 5.5]), 2.0),
        "special_zeta.self_scalar": lambda: torch.special.zeta(2.0, torch.tensor([-20.5, -1.0, 0.0, 2.0])),
        "polygamma.default negative": lambda: [torch.polygamma(n, torch.tensor([-30.4, -0.3, 0.7, 20.0])) for n in range(4)],
        "round.decimals": lambda: [torch.round(torch.tensor([1234.5678, -0.125]), decimals=d) for d in (-2, 0, 1, 3)],
        "logit.default eps": lambda: torch.logit(torch.tensor([0.0, 0.2, 1.0]), 0.1),
        "frexp.Tensor special": lambda: torch.frexp(torch.tensor([0.0, 1.0, -3.0, 1e-30])),
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
