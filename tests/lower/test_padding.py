"""Padding and columns of windows against CPU eager."""

from __future__ import annotations

import functools

import torch
from structured import Family

functional = torch.nn.functional
PADDINGS = [-1, 2, 3, -1, 0, 2]


def both(name, padding):
    x = torch.randn(2, 3, 5, 6, 4)[(..., *(0,) * (3 - len(padding) // 2))]
    result = getattr(torch.ops.aten, name)(x, padding)
    getattr(torch.ops.aten, f"{name}_backward")(torch.randn_like(result), x, padding)


FAMILY = Family(
    "padding",
    ops=("constant_pad_nd", "nn.functional.pad", "nn.functional.unfold"),
    cases={
        "constant_pad_nd.default cuts": lambda: functional.pad(torch.randn(4, 5), (-1, 2, 3, -2), value=1.5),
        "constant_pad_nd.default empty": lambda: functional.pad(torch.randn(0, 5), (1, 2, 1, 1)),
        **{
            f"{name}_pad{n}d.default {name}_pad{n}d_backward.default": functools.partial(both, f"{name}_pad{n}d", PADDINGS[: 2 * n])
            for name in ("reflection", "replication")
            for n in (2, 3)
        },
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
