"""Images of another size: nearest, linear, cubic, with antialiasing; each dimension is a few weighted taps of the input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import along, opmath, strided, transposed
from surestep.lower.spec import lowering

_LARGEST_MATRIX = 2**22  # a dimension's weights are no longer made a matrix beyond this many elements


class Taps(NamedTuple):
    """For every output position, along one dimension: which input elements count, and how much (``None``: one, fully)."""

    index: np.ndarray  # taps, output size
    weight: np.ndarray | None


def _scale(size, out_size, align_corners, scale, dtype):
    if align_corners:
        return dtype.type(size - 1) / dtype.type(out_size - 1) if out_size > 1 else dtype.type(0)
    return dtype.type(1 / scale) if scale is not None and scale > 0 else dtype.type(size) / dtype.type(out_size)


def _nearest_taps(size, out_size, _align_corners, scale, _dtype, *, exact, by_size=False):
    """PyTorch finds the neighbour in float32, whatever the dtype of the image; in two dimensions, by the sizes alone where they are equal
    or double (a scale of 1.02 may give that, too).
    """
    if by_size and out_size in (size, 2 * size):
        return Taps((np.arange(out_size) // (out_size // size))[None], None)
    f32 = np.dtype(np.float32)
    position = np.arange(out_size, dtype=f32) + f32.type(0.5 if exact else 0)
    source = np.floor(position * _scale(size, out_size, False, scale, f32)).astype(np.int64)
    return Taps(np.minimum(source, size - 1)[None], None)


def _source(size, out_size, align_corners, scale, dtype):
    step = _scale(size, out_size, align_corners, scale, dtype)
    position = np.arange(out_size, dtype=dtype)
    half = dtype.type(0.5)
    return step * position if align_corners else step * (position + half) - half


def _linear_taps(size, out_size, align_corners, scale, dtype):
    if size == out_size:  # whatever the scale
        return Taps(np.arange(size)[None], None)
    source = np.maximum(_source(size, out_size, align_corners, scale, dtype), 0)
    first = np.minimum(source.astype(np.int64), size - 1)
    fraction = np.clip(source - first.astype(dtype), 0, 1).astype(dtype)
    return Taps(np.stack([first, np.minimum(first + 1, size - 1)]), np.stack([1 - fraction, fraction]))


def _cubic(distance, a):
    """The cubic convolution kernel."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(x.dtype)


def _cubic_taps(size, out_size, align_corners, scale, dtype):
    source = _source(size, out_size, align_corners, scale, dtype)
    first = np.floor(source)
    fraction = source - first
    offsets = range(-1, 3)
    index = np.stack([np.clip(first.astype(np.int64) + k, 0, size - 1) for k in offsets])
    return Taps(index, np.stack([_cubic(fraction - dtype.type(k), dtype.type(-0.75)) for k in offsets]))


def _triangle(x):
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x):
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialiased_taps(size, out_size, align_corners, scale, dtype, *, kernel, reach):
    """The kernel is stretched where the image shrinks, so that every input element counts."""
    step = _scale(size, out_size, align_corners, scale, dtype)
    stretch = np.maximum(step, dtype.type(1))
    support = dtype.type(reach) * stretch
    center = step * (np.arange(out_size, dtype=dtype) + dtype.type(0.5))
    start = np.maximum((center - support + dtype.type(0.5)).astype(np.int64), 0)
    count = np.minimum((center + support + dtype.type(0.5)).astype(np.int64), size) - start
    k = np.arange(max(int(count.max()), 1))[:, None]
    weight = kernel(((k + start).astype(dtype) - center + dtype.type(0.5)) * (1 / stretch)) * (k < count)
    total = weight.sum(0)
    return Taps(np.minimum(start + k, size - 1), (weight / np.where(total == 0, 1, total)).astype(dtype))


def _factor(size: int, taps: Taps) -> int:
    """How often every input element is repeated, where that is all there is to do; else 0."""
    out_size = taps.index.shape[1]
    factor = out_size // size
    repeats = taps.weight is None and factor * size == out_size and (taps.index[0] == np.arange(out_size) // max(factor, 1)).all()
    return factor if repeats else 0


def _resized_along(x, axis, taps):
    factor = _factor(x.shape[axis], taps)
    if factor:
        return jnp.repeat(x, factor, axis, total_repeat_length=taps.index.shape[1])
    if taps.weight is None:
        return jnp.take(x, taps.index[0], axis)
    terms = [jnp.take(x, index, axis) * along(weight, axis, x.ndim) for index, weight in zip(taps.index, taps.weight, strict=True)]
    return functools.reduce(jnp.add, terms)


def _resized_bytes_along(x, axis, taps):
    """As PyTorch resizes images of bytes: integers, with weights of sixteen bits and as many of them behind the point as there is room."""
    index, weight = taps.index, taps.weight.copy()
    for k in range(1, len(index)):  # taps that meet at the border are one
        meet = index[k] == index[k - 1]
        weight[k] += np.where(meet, weight[k - 1], 0)
        weight[k - 1][meet] = 0
    bits = next(b for b in range(23) if b == 22 or int(0.5 + weight.max() * (1 << (b + 1))) >= 1 << 15)
    whole = np.trunc(weight * (1 << bits) + np.copysign(0.5, weight)).astype(np.int32)
    total = _resized_along(x.astype(np.int32), axis, Taps(index, whole)) + (1 << bits >> 1)
    return jnp.clip(total >> bits, 0, 255)


def _spread_along(grad, axis, taps, size):
    """The adjoint, as sums of slices or a matrix product: scattering is slow on XLA:CPU."""
    out_size = grad.shape[axis]
    factor = _factor(size, taps)
    if factor:
        return functools.reduce(jnp.add, [strided(grad, axis, k, size, factor) for k in range(factor)])
    if size * out_size > _LARGEST_MATRIX:
        shape = [size if d == axis else n for d, n in enumerate(grad.shape)]
        return transposed(lambda v: _resized_along(v, axis, taps), shape, grad.dtype)(grad)
    matrix = np.zeros((size, out_size), grad.dtype)
    weight = np.ones(taps.index.shape, grad.dtype) if taps.weight is None else taps.weight
    np.add.at(matrix, (taps.index, np.broadcast_to(np.arange(out_size), taps.index.shape)), weight)
    product = lax.dot_general(grad, jnp.asarray(matrix), (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(product, -1, axis)


def upsampling(taps: Callable[..., Taps], rank: int, aligned: bool):
    """Lowerings of an upsampling and its backward; ``aligned`` ones have the argument ``align_corners``."""
    exact = taps in (_NEAREST, _NEAREST_2D, _NEAREST_EXACT)
    antialiased = taps in _AA.values()

    def axes(shape, out_shape, options, dtype):
        align_corners, *scales = options if aligned else (False, *options)
        first = len(shape) - rank
        scales = scales or (None,) * rank
        return [(first + i, taps(shape[first + i], out_shape[first + i], align_corners, scales[i], dtype)) for i in range(rank)]

    def forward(out, x, _output_size, *options):
        if x.dtype == np.uint8 and not exact:
            for axis, t in axes(x.shape, out.shape, options, np.dtype(np.float64))[::-1]:
                x = _resized_bytes_along(x, axis, t) if x.shape[axis] != out.shape[axis] else x
            return x.astype(out.dtype)
        dtype = opmath(x.dtype)
        resized = x if exact else x.astype(dtype)
        each = axes(x.shape, out.shape, options, dtype)
        # whole rows are repeated faster than elements: the small image gets its elements repeated first
        for axis, t in each[::-1] if exact else each:
            if antialiased and x.shape[axis] == out.shape[axis]:
                continue  # as PyTorch leaves it, whatever the scale: not so in its backward
            resized = _resized_along(resized, axis, t)
        return resized.astype(out.dtype)

    def backward(out, grad, _output_size, _input_size, *options):
        if 0 in grad.shape:
            return jnp.zeros(out.shape, out.dtype)
        dtype = opmath(grad.dtype)
        wide = grad.astype(dtype)
        each = axes(out.shape, grad.shape, options, dtype)
        for axis, t in each if exact else each[::-1]:
            wide = _spread_along(wide, axis, t, out.shape[axis])
        return wide.astype(out.dtype)

    return forward, backward


_NEAREST = functools.partial(_nearest_taps, exact=False)
_NEAREST_2D = functools.partial(_nearest_taps, exact=False, by_size=True)
_NEAREST_EXACT = functools.partial(_nearest_taps, exact=True)
_AA = {
    "bilinear": functools.partial(_antialiased_taps, kernel=_triangle, reach=1),
    "bicubic": functools.partial(_antialiased_taps, kernel=functools.partial(_cubic, a=-0.5), reach=2),
    "lanczos": functools.partial(_antialiased_taps, kernel=_lanczos, reach=3),
}
_KINDS = [
    *((f"upsample_nearest{n}d", _NEAREST_2D if n == 2 else _NEAREST, n, False) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", _NEAREST_EXACT, n, False) for n in (1, 2, 3)),
    *((f"upsample_{name}{n}d", _linear_taps, n, True) for n, name in ((1, "linear"), (2, "bilinear"), (3, "trilinear"))),
    ("upsample_bicubic2d", _cubic_taps, 2, True),
    *((f"_upsample_{name}2d_aa", taps, 2, True) for name, taps in _AA.items()),
]
_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


def _table():
    for name, taps, rank, aligned in _KINDS:
        forward, backward = upsampling(taps, rank, aligned)
        yield f"{name}.default", lowering(forward, constants=_SCALES)
        yield f"{name}_backward.default", lowering(backward, constants=_SCALES)


TABLE = dict(_table())
