"""Reductions against CPU eager."""

from __future__ import annotations

import warnings

import torch
from elementwise import Elementwise

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor([[1.0, NAN, 3.0, 3.0], [INF, -INF, 0.0, -0.0], [2.0, 2.0, 2.0, 2.0], [-INF, -INF, -INF, -INF]])
X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -0.25]])
BOOLS = torch.tensor([[True, False], [True, True]])
BYTES = torch.tensor([[0, 200], [100, 255]], dtype=torch.uint8)


def no_degrees():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [X.var(correction=6), X.var(correction=7), torch.tensor(1.0).var(), torch.ones(0).var()]


FAMILY = Elementwise(
    "reduction",
    dtypes=(torch.float64, torch.bool),
    ops=(
        "all",
        "amax",
        "amin",
        "aminmax",
        "any",
        "argmax",
        "argmin",
        "count_nonzero",
        "dist",
        "linalg.vector_norm",
        "logsumexp",
        "max",
        "mean",
        "min",
        "nansum",
        "norm",
        "prod",
        "std",
        "std_mean",
        "sum",
        "trace",
        "var",
        "var_mean",
    ),
    cases={
        "sum.dim_IntList all": lambda: [X.sum(dim=[]), X.sum(dim=[], keepdim=True), X.sum(dim=(0, -1))],
        "sum.default kinds": lambda: [BOOLS.sum(), BYTES.sum(), torch.tensor(3).sum(), torch.ones(0).sum(), X.sum(dtype=torch.float64)],
        "sum.default bfloat16": lambda: torch.full((1000,), 0.1, dtype=torch.bfloat16).sum(),
        "sum.dim_IntList scalar": lambda: torch.tensor(2.0).sum(0),
        "mean.dim empty": lambda: [torch.ones(0, 3).mean(0), torch.ones(2, 0).mean(-1)],
        "mean.default empty": lambda: torch.ones(0).mean(),
        "prod.dim_int": lambda: [X.prod(1), BYTES.prod(0, keepdim=True), torch.ones(0, 2).prod(0)],
        "var.correction": lambda: [X.var(correction=c) for c in (0, 1, 2, 1.5)] + [(X + 1e4).var(1, keepdim=True)],
        "var.correction none left": no_degrees,
        "var.correction large mean": lambda: (torch.randn(1000) + 4096).var(),
        "std.correction complex": lambda: torch.complex(X, X * X).std(0),
        "var_mean.correction scalar": lambda: torch.var_mean(torch.tensor(3.0), correction=0),
        "std_mean.correction bfloat16": lambda: torch.std_mean(X.bfloat16(), 1, keepdim=True),
        "max.dim special": lambda: [ROWS.max(d) for d in (0, 1, -1)] + [torch.tensor(2.0).max(0)],
        "min.dim special": lambda: [ROWS.min(d, keepdim=True) for d in (0, 1)] + [BOOLS.min(1), BYTES.min(0)],
        "argmax.default special": lambda: [ROWS.argmax(), ROWS.argmax(1), ROWS.argmax(0, keepdim=True), torch.argmax(X, keepdim=True)],
        "argmin.default special": lambda: [
            ROWS.argmin(),
            ROWS.argmin(1),
            torch.tensor(1).argmin(),
            torch.tensor([2**60 + 1, 2**60]).argmin(),
        ],
        "amax.default special": lambda: [ROWS.amax(), ROWS.amax((0, 1)), ROWS.amax(1, keepdim=True), BOOLS.amax(0)],
        "amin.default special": lambda: [ROWS.amin(), ROWS.amin([]), BYTES.amin(1)],
        "aminmax.default special": lambda: [ROWS.aminmax(), ROWS.aminmax(dim=1, keepdim=True)],
        "max.default special": lambda: [ROWS.max(), ROWS[1:].max(), BOOLS.max(), torch.tensor(1).max()],
        "all.dim": lambda: [BOOLS.all(0), BYTES.all(1, keepdim=True), torch.ones(0, 2).all(0), aten.all.dim(torch.tensor(True), 0)],
        "all.dims": lambda: [aten.all.dims(BOOLS, [0, 1]), aten.all.dims(ROWS, None, True)],
        "any.dims": lambda: [aten.any.dims(BOOLS, [0, 1]), aten.any.dims(ROWS, None, True)],
        "any.default kinds": lambda: [BYTES.any(), ROWS.any(), torch.ones(0).any()],
        "_is_all_true.default": lambda: aten._is_all_true(BOOLS),
        "_is_any_true.default": lambda: aten._is_any_true(BOOLS),
        "count_nonzero.dim_IntList": lambda: [torch.count_nonzero(X, (0, 1)), torch.count_nonzero(ROWS, 0)],
        "linalg_vector_norm.default orders": lambda: [
            torch.linalg.vector_norm(X, p, d, k) for p in (0, 1, 2, 3.5, -1, INF, -INF) for d, k in ((None, False), ((1,), True))
        ],
        "linalg_vector_norm.default halves": lambda: torch.linalg.vector_norm(torch.full((300,), 300.0, dtype=torch.float16), 2),
        "linalg_vector_norm.default empty": lambda: torch.linalg.vector_norm(torch.ones(0)),
        "norm.Scalar": lambda: [aten.norm.Scalar(X, p) for p in (1, 2, INF)],
        "norm.ScalarOpt_dim": lambda: aten.norm.ScalarOpt_dim(X, None, [1], True),
        "norm.ScalarOpt_dtype": lambda: aten.norm.ScalarOpt_dtype(X, 2, dtype=torch.float64),
        "norm.ScalarOpt_dim_dtype": lambda: aten.norm.ScalarOpt_dim_dtype(X, 2, [0], False, dtype=torch.float64),
        "logsumexp.default special": lambda: [
            ROWS.logsumexp(1),
            ROWS.logsumexp((0, 1), True),
            torch.tensor(2.0).logsumexp(0),
            (X * 1e4).logsumexp(0),
        ],
        "logsumexp.default empty": lambda: torch.ones(2, 0).logsumexp(1),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
