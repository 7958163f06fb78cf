"""Joins, flips, triangles and copies of views against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten
OPS = (
    "cat",
    "stack",
    "block_diag",
    "roll",
    "flip",
    "rot90",
    "repeat",
    "tile",
    "repeat_interleave",
    "tril",
    "triu",
    "diag_embed",
    "diagonal_scatter",
    "slice_scatter",
    "select_scatter",
    "unfold",
    "unfold_copy",
    "nn.functional.channel_shuffle",
    "nn.functional.pixel_shuffle",
    "nn.functional.pixel_unshuffle",
    "linalg.cross",
    "diagonal",
    "diagonal_copy",
    "select",
    "slice",
    "narrow",
    "narrow_copy",
    "alias_copy",
    "view_copy",
    "squeeze_copy",
    "unsqueeze_copy",
    "expand_copy",
    "permute_copy",
    "transpose_copy",
    "t_copy",
    "split_with_sizes_copy",
    "unsafe_chunk",
    "unsafe_split",
    "unbind_copy",
    "matmul",
)


def x():
    return torch.randn(4, 5, 6)


CASES = {
    "_reshape_copy.default": lambda: aten._reshape_copy(x(), [20, 6]),
    "_stack.default": lambda: aten._stack([x(), x()], -1),
    "detach_copy.default": lambda: aten.detach_copy(x()),
    "lift.default": lambda: aten.lift(x()),
    "lift_fresh_copy.default": lambda: aten.lift_fresh_copy(x()),
    "select_copy.int": lambda: aten.select_copy(x(), -2, -3),
    "slice_copy.Tensor": lambda: aten.slice_copy(x(), -1, -5, 100, 2),
    "slice_copy.Tensor empty": lambda: aten.slice_copy(x(), 1, 4, 2),
    "split_copy.Tensor": lambda: aten.split_copy(x(), 2, 1),
    "squeeze_copy.dims": lambda: aten.squeeze_copy.dims(torch.randn(1, 3, 1), [0, 1]),
    "unsafe_split_with_sizes.default": lambda: aten.unsafe_split_with_sizes(x(), [1, 0, 4], 1),
    "cat.default promotes": lambda: torch.cat([torch.ones(2, dtype=torch.int64), torch.ones(3), torch.ones(0, dtype=torch.float64)]),
    "slice_backward.default": lambda: aten.slice_backward(torch.randn(4, 2), [4, 9], 1, 2, 6, 3),
    "slice_scatter.default": lambda: aten.slice_scatter(x(), torch.randn(4, 5, 2), 2, 1, -1, 3),
    "unfold_backward.default many windows": lambda: aten.unfold_backward(torch.randn(100, 70), [169], 0, 70, 1),
    "unfold_copy.default many windows": lambda: aten.unfold_copy(torch.randn(169), 0, 70, 1),
    "unfold_copy.default 0-d": lambda: aten.unfold_copy(torch.tensor(3.0), 0, 1, 1),
    "roll.default": lambda: torch.roll(x(), (1, -2), (0, -1)),
    "flip.default 0-d": lambda: torch.flip(torch.tensor(1.0), []),
    "tril.default keeps nan out": lambda: torch.tril(torch.full((3, 3), float("nan"))),
    "repeat_interleave.Tensor": lambda: aten.repeat_interleave.Tensor(torch.tensor([2, 0, 3]), output_size=5),
}
FAMILY = Family("shape", ops=OPS, cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()
