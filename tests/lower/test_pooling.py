"""Pooling and its gradients against CPU eager."""

from __future__ import annotations

import jax
import pytest
import torch
from checks import to_jax, to_torch
from structured import Family

from surestep.lower import pooling

aten = torch.ops.aten
OPS = tuple(
    f"nn.functional.{name}"
    for name in (
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "max_unpool1d",
        "max_unpool2d",
        "max_unpool3d",
    )
)
NAN = float("nan")


def max_pool(x, *geometry):
    values, positions = aten.max_pool2d_with_indices(x, *geometry)
    aten.max_pool2d_with_indices_backward(torch.randn_like(values), x, *geometry, positions)


def with_holes():
    x = torch.randn(2, 3, 9, 10)
    x[0, 0, 2, 3] = x[0, 0, 2, 5] = x[1, 2, 8, 9] = NAN
    x[1, 1] = -float("inf")
    return x


CASES = {
    "max_pool2d_with_indices_backward.default": lambda: max_pool(with_holes(), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "max_pool2d_with_indices_backward.default ceil": lambda: max_pool(with_holes(), [3, 2], [2, 3], [1, 0], [2, 1], True),
    "max_pool2d_with_indices_backward.default large": lambda: max_pool(with_holes(), [7, 6], [2, 1], [3, 3], [1, 1], False),
    "max_pool2d_with_indices_backward.default ties": lambda: max_pool(torch.ones(1, 1, 6, 6), [3, 3], [1, 1], [1, 1], [1, 1], False),
    "max_pool2d_with_indices_backward.default unread": lambda: max_pool(torch.randn(1, 7, 7), [2, 2], [3, 3], [0, 0], [1, 1], False),
    "max_pool2d_with_indices.default of ints": lambda: aten.max_pool2d_with_indices(torch.randint(-9, 9, (1, 6, 6)), [2, 2], [], [1, 1]),
    "max_pool2d_with_indices.default empty": lambda: aten.max_pool2d_with_indices(torch.randn(0, 3, 6, 6), [2, 2]),
    "avg_pool2d.default of ints": lambda: aten.avg_pool2d(torch.randint(-9, 9, (1, 6, 6)), [2, 2]),
    "avg_pool2d.default divisor": lambda: aten.avg_pool2d(torch.randn(1, 2, 7, 8), [3, 2], [2, 3], [1, 1], True, False, 5),
    "avg_pool2d.default ceil": lambda: aten.avg_pool2d(torch.randn(1, 2, 7, 8), [3, 2], [2, 3], [1, 1], True, True),
    "avg_pool2d_backward.default": lambda: aten.avg_pool2d_backward(
        torch.randn(1, 2, 4, 3), torch.randn(1, 2, 7, 8), [3, 2], [2, 3], [1, 1], True, False, None
    ),
    "_adaptive_avg_pool2d.default uneven": lambda: aten._adaptive_avg_pool2d(torch.randn(2, 7, 10), [3, 4]),
    "adaptive_max_pool2d.default nan": lambda: aten.adaptive_max_pool2d(with_holes(), [4, 3]),
}
FAMILY = Family("pooling", ops=OPS, cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("geometry", [([3, 3], [2, 2], [1, 1], [1, 1]), ([2, 3], [1, 2], [1, 0], [2, 1]), ([2, 2], [3, 3], [0, 0], [1, 1])])
def test_gradients_are_selected_as_they_are_scattered(geometry):
    """What accelerators do, and the CPU doesn't."""
    x = torch.randn(2, 3, 9, 10)
    values, positions = aten.max_pool2d_with_indices(x, *geometry)
    grad = torch.randn_like(values)
    expected = aten.max_pool2d_with_indices_backward(grad, x, *geometry, False, positions)
    with jax.enable_x64(True):
        selected = pooling._selected(to_jax(grad), to_jax(positions), pooling.windows((9, 10), values.shape[2:], *geometry), x.shape)
    torch.testing.assert_close(to_torch(selected), expected)
