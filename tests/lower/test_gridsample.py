"""Sampled grids and their gradients against CPU eager."""

from __future__ import annotations

import functools

import pytest
import torch
from structured import Family

from both import compare

aten = torch.ops.aten


def sampled(interpolation, padding, aligned, dtype=torch.float64):
    image, grid = torch.randn(2, 3, 5, 6, dtype=dtype), torch.randn(2, 4, 7, 2, dtype=dtype) * 2
    result = aten.grid_sampler_2d(image, grid, interpolation, padding, aligned)
    aten.grid_sampler_2d_backward(torch.randn_like(result), image, grid, interpolation, padding, aligned, [True, True])


def fallback():
    image, grid = torch.randn(2, 3, 5, 6), torch.randn(2, 4, 7, 2)
    result = aten._grid_sampler_2d_cpu_fallback(image, grid, 0, 1, False)
    aten._grid_sampler_2d_cpu_fallback_backward(torch.randn_like(result), image, grid, 0, 1, False)


CASES = {
    **{
        f"grid_sampler_2d_backward.default {interpolation} {padding} {aligned}": functools.partial(sampled, interpolation, padding, aligned)
        for interpolation, padding, aligned in ((0, 0, False), (0, 1, True), (0, 2, False), (1, 2, True), (2, 0, True), (2, 2, False))
    },
    "_grid_sampler_2d_cpu_fallback.default": fallback,
    "_grid_sampler_2d_cpu_fallback_backward.default": fallback,
    "affine_grid_generator.default": lambda: aten.affine_grid_generator(torch.randn(2, 2, 3), [2, 3, 4, 5], False),
    "affine_grid_generator.default aligned": lambda: aten.affine_grid_generator(torch.randn(2, 3, 4), [2, 3, 4, 5, 1], True),
}
FAMILY = Family("gridsample", ops=("nn.functional.grid_sample", "grid_sampler_3d"), cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize(("image", "grid"), [(True, False), (False, True)])
def test_one_operand_without_a_gradient_stays_on_the_device(image, grid):
    def run(device):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 5, 5, dtype=torch.float64).to(device).requires_grad_(image)
        points = torch.randn(2, 4, 4, 2, dtype=torch.float64).tanh().to(device).requires_grad_(grid)
        torch.nn.functional.grid_sample(x, points, align_corners=False).sin().sum().backward()
        return x.grad if image else points.grad

    compare([run("cpu")], [run("xla")], rtol=1e-9, atol=1e-9)
