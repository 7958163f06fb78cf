"""Running sums, products and extrema against CPU eager."""

from __future__ import annotations

import torch
from elementwise import Elementwise

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor([[1.0, 3.0, 3.0, 2.0, NAN, 4.0, NAN], [INF, -INF, 0.0, -0.0, 1.0, INF, -INF]])

FAMILY = Elementwise(
    "cumulative",
    dtypes=(torch.float64, torch.bool),
    ops=("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    cases={
        "cumsum.default bool": lambda: [torch.tensor([True, True]).cumsum(0), torch.tensor(2).cumsum(0), torch.ones(0, 2).cumsum(1)],
        "cumsum.default bfloat16": lambda: torch.full((300,), 0.1, dtype=torch.bfloat16).cumsum(-1),
        "cumprod.default dtype": lambda: torch.arange(1, 5).cumprod(0, dtype=torch.float32),
        "cummax.default special": lambda: [
            ROWS.cummax(1),
            ROWS.cummax(0),
            torch.tensor([True, False, True]).cummax(0),
            torch.tensor(1.0).cummax(0),
        ],
        "cummin.default special": lambda: [ROWS.cummin(1), ROWS.cummin(-2), torch.tensor([3, 1, 1, 2]).cummin(0)],
        "logcumsumexp.default special": lambda: [ROWS.logcumsumexp(1), (ROWS * 1e4).logcumsumexp(0)],
        "_logcumsumexp.default": lambda: aten._logcumsumexp(ROWS, 1),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
