"""Images sampled at the points of a grid, and the grids of affine maps."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _unnormalized(coordinate, size, align_corners):
    """From [-1, 1] to elements."""
    return (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2


def _clipped(x, size):
    """Within the image; the gradient is zero from the border on, as PyTorch has it."""
    return jnp.where(x <= 0, jnp.zeros_like(x), jnp.where(x >= size - 1, jnp.full_like(x, size - 1), x))


def _reflected(x, size, align_corners):
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(x)
    x = x - low
    x = jnp.where(x < 0, -x, x)
    flips = lax.stop_gradient(jnp.floor(x / span))
    extra = x - flips * span
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _padded(x, size, padding_mode, align_corners):
    if padding_mode == _ZEROS:
        return x
    return _clipped(_reflected(x, size, align_corners) if padding_mode == _REFLECTION else x, size)


def _read(image, position):
    """The image (N, C, spatial...) at whole positions (one array (N, out...) per dimension), zero outside of it."""
    sizes = image.shape[2:]
    inside: Any = True
    flat: Any = 0
    for at, size in zip(position, sizes, strict=True):
        inside = inside & (at >= 0) & (at <= size - 1)
        flat = flat * size + jnp.clip(at, 0, size - 1).astype(np.int64)
    n, out = flat.shape[0], flat.shape[1:]
    index = flat.reshape(n, 1, -1)
    values = jnp.take_along_axis(image.reshape(n, image.shape[1], -1), index, 2, mode="clip")
    return jnp.where(inside[:, None], values.reshape(n, image.shape[1], *out), jnp.zeros((), image.dtype))


def _cubic_weights(fraction):
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)


def _sampled(image, grid, interpolation_mode, padding_mode, align_corners):
    sizes = image.shape[2:]
    coordinates = [_unnormalized(grid[..., i], size, align_corners) for i, size in enumerate(reversed(sizes))][::-1]
    pad = functools.partial(_padded, padding_mode=padding_mode, align_corners=align_corners)
    if interpolation_mode != _BICUBIC:
        coordinates = [pad(x, size) for x, size in zip(coordinates, sizes, strict=True)]
    if interpolation_mode == _NEAREST:
        return _read(image, [lax.stop_gradient(jnp.round(x)) for x in coordinates])
    floors = [lax.stop_gradient(jnp.floor(x)) for x in coordinates]
    fractions = [x - f for x, f in zip(coordinates, floors, strict=True)]
    if interpolation_mode == _BICUBIC:
        taps = [
            [(pad(f + k - 1, size), w) for k, w in enumerate(_cubic_weights(x))]
            for f, x, size in zip(floors, fractions, sizes, strict=True)
        ]
    else:
        taps = [[(f, 1 - x), (f + 1, x)] for f, x in zip(floors, fractions, strict=True)]
    total = jnp.zeros((), image.dtype)
    for corner in itertools.product(*taps):
        weight = math.prod((w for _, w in corner[1:]), start=corner[0][1])
        total = total + _read(image, [at for at, _ in corner]) * weight[:, None]
    return total


def grid_sampler(out, image, grid, interpolation_mode, padding_mode, align_corners):
    dtype = opmath(image.dtype)
    if 0 in out.shape:
        return jnp.zeros(out.shape, out.dtype)
    return _sampled(image.astype(dtype), grid.astype(dtype), interpolation_mode, padding_mode, align_corners).astype(out.dtype)


def grid_sampler_backward(out, grad, image, grid, interpolation_mode, padding_mode, align_corners, output_mask=(True, True)):
    dtype = opmath(image.dtype)
    if grad.size == 0:
        return tuple(None if o is None else jnp.zeros(o.shape, o.dtype) for o in out)

    def sample(image, grid):
        return _sampled(image, grid, interpolation_mode, padding_mode, align_corners)

    gradients = jax.vjp(sample, image.astype(dtype), grid.astype(dtype))[1](grad.astype(dtype))
    return tuple(None if o is None else g.astype(o.dtype) for g, o in zip(gradients, out, strict=True))


def affine_grid_generator(out, theta, size, align_corners):
    """The image of every point of the unit grid; the first coordinate is the last dimension's."""
    dtype = opmath(theta.dtype)
    spatial = tuple(size[2:])
    rank = len(spatial)
    total = theta[:, :, rank].reshape(-1, *(1,) * rank, rank).astype(dtype)
    for i, n in enumerate(reversed(spatial)):
        steps = np.linspace(-1, 1, n) if n > 1 else np.zeros(n)
        steps = steps if align_corners or n <= 1 else steps * (n - 1) / n
        steps = steps.astype(dtype).reshape([-1 if d == rank - 1 - i else 1 for d in range(rank)])
        total = total + steps[None, ..., None] * theta[:, :, i].reshape(-1, *(1,) * rank, rank).astype(dtype)
    return jnp.broadcast_to(total, out.shape).astype(out.dtype)


TABLE = {
    **{f"grid_sampler_{n}d.default": lowering(grid_sampler) for n in (2, 3)},
    **{f"grid_sampler_{n}d_backward.default": lowering(grid_sampler_backward) for n in (2, 3)},
    "_grid_sampler_2d_cpu_fallback.default": lowering(grid_sampler),
    "_grid_sampler_2d_cpu_fallback_backward.default": lowering(grid_sampler_backward),
    "affine_grid_generator.default": lowering(affine_grid_generator),
}
