"""Distances and their gradients against CPU eager."""

from __future__ import annotations

import functools

import torch
from structured import Family

aten = torch.ops.aten


def cdist_backward(p):
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    x[0, 0] = y[0, 0]
    aten._cdist_backward(torch.randn(2, 5, 4, dtype=torch.float64), x, y, p, torch.cdist(x, y, p))


FAMILY = Family(
    "distance",
    ops=("cdist", "nn.functional.pdist"),
    cases={
        "_euclidean_dist.default": lambda: aten._euclidean_dist(torch.randn(4, 3), torch.randn(5, 3)),
        **{f"_cdist_backward.default {p}": functools.partial(cdist_backward, p) for p in (0.0, 0.7, 1.0, 1.5, 2.0, 3.0, float("inf"))},
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
