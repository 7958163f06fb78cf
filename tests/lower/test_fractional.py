"""Fractional maximum pooling against CPU eager."""

import torch
from structured import Family

aten = torch.ops.aten


def pooled(rank, dtype, size, kernel, count):
    pool, backward = getattr(aten, f"fractional_max_pool{rank}d"), getattr(aten, f"fractional_max_pool{rank}d_backward")
    for outer in ((2, 3), (3,)):
        x = torch.randn(*outer, *size, dtype=dtype)
        x.view(-1)[5] = float("nan")
        samples = torch.rand(*((1,) * (2 - len(outer))), *outer, rank, dtype=dtype)
        result, places = pool(x, kernel, count, samples)
        backward(torch.randn_like(result), x, kernel, count, places)


CASES = {
    f"fractional_max_pool{rank}d.default fractional_max_pool{rank}d_backward.default {dtype} {name}": lambda r=rank, d=dtype, s=shapes: (
        pooled(r, d, *s)
    )
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
    for rank, name, shapes in (
        (2, "wide", ((9, 12), (2, 3), (4, 5))),
        (2, "one", ((9, 12), (2, 2), (1, 11))),
        (3, "deep", ((6, 7, 5), (2, 2, 2), (3, 4, 2))),
    )
}
FAMILY = Family("fractional", cases=CASES)

_, test_case, test_keys = FAMILY.tests()
