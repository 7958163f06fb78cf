"""Convolutions and their gradients against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten
OPS = tuple(f"nn.functional.conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))


def both(x, weight, stride, padding, dilation, transposed, output_padding, groups):
    """Forward and all three gradients."""
    x, weight = torch.randn(x), torch.randn(weight)
    bias = torch.randn(weight.shape[1] * groups if transposed else weight.shape[0])
    options = (stride, padding, dilation, transposed, output_padding, groups)
    result = aten.convolution(x, weight, bias, *options)
    aten.convolution_backward(torch.randn_like(result), x, weight, [bias.shape[0]], *options, [True, True, True])


CASES = {
    "convolution_backward.default strided": lambda: both((2, 3, 9, 8), (4, 3, 3, 2), [2, 3], [1, 0], [1, 1], False, [0, 0], 1),
    "convolution_backward.default dilated": lambda: both((2, 3, 9, 8), (4, 3, 3, 2), [2, 1], [2, 1], [2, 3], False, [0, 0], 1),
    "convolution_backward.default grouped": lambda: both((2, 6, 9, 8), (8, 3, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    "convolution_backward.default depthwise": lambda: both((2, 4, 9, 8), (8, 1, 3, 3), [2, 1], [1, 2], [1, 2], False, [0, 0], 4),
    "convolution_backward.default many groups": lambda: both((1, 80, 5, 5), (40, 2, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 40),
    "convolution_backward.default transposed": lambda: both((2, 4, 5, 6), (4, 3, 3, 3), [2, 2], [1, 0], [1, 1], True, [1, 0], 1),
    "convolution_backward.default transposed, grouped": lambda: both((2, 4, 5, 6), (4, 3, 3, 2), [2, 3], [1, 0], [2, 1], True, [1, 2], 2),
    "convolution_backward.default transposed, depthwise": lambda: both((2, 4, 5, 6), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 4),
    "convolution_backward.default padded beyond the stride": lambda: both((2, 4, 5), (4, 3, 3), [1], [1], [3], True, [2], 1),
    "convolution_backward.default 3-d": lambda: both(
        (2, 4, 5, 6, 5), (6, 2, 3, 2, 1), [2, 1, 1], [1, 0, 0], [1, 2, 1], False, [0, 0, 0], 2
    ),
    "convolution_backward.default no bias": lambda: aten.convolution_backward(
        torch.randn(1, 2, 3), torch.randn(1, 1, 5), torch.randn(2, 1, 3), None, [1], [0], [1], False, [0], 1, [True, False, False]
    ),
    "convolution.default empty": lambda: aten.convolution(torch.randn(0, 3, 8), torch.randn(4, 3, 3), None, [1], [0], [1], False, [0], 1),
    "convolution.default of ints": lambda: aten.convolution(
        torch.arange(20).reshape(1, 2, 10), torch.arange(12).reshape(2, 2, 3), None, [1], [0], [1], False, [0], 1
    ),
    "_convolution.default": lambda: aten._convolution(
        torch.randn(2, 3, 8), torch.randn(4, 3, 3), torch.randn(4), [2], [1], [1], False, [0], 1, False, False, True, True
    ),
}
FAMILY = Family("convolution", ops=OPS, cases=CASES, unreached=("convolution_overrideable.default",))  # no kernel on the CPU

test_samples, test_case, test_keys = FAMILY.tests()
