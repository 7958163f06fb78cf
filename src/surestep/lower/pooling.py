"""Pooling over windows: maximum with positions, average, adaptive windows, unpooling; each with its gradient."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import along, from_front, ints, low, opmath, strided, transposed
from surestep.lower.spec import lowering


class Windows(NamedTuple):
    """The windows along one dimension: window ``i`` starts at ``i * stride - padding``."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    count: int

    @property
    def after(self) -> int:
        """The padding behind that the last window needs; negative where elements are left over."""
        return (self.count - 1) * self.stride + self.dilation * (self.kernel - 1) + 1 - self.size - self.padding


def windows(shape, out_shape, kernel, stride, padding, dilation=1):
    n = len(shape)
    kernel = ints(kernel, n)
    parameters = (kernel, ints(stride, n) if stride not in ((), [], None) else kernel, ints(padding, n), ints(dilation, n))
    return [Windows(s, k, st, p, d, o) for s, k, st, p, d, o in zip(shape, *parameters, out_shape, strict=True)]


def _flat_positions(shape, ndim):
    """The position of every element within its plane, of ``ndim`` dimensions, as wide as a plane needs."""
    return np.arange(math.prod(shape)).reshape((1,) * (ndim - len(shape)) + tuple(shape))


def _larger(best, challenger):
    """The larger value and its position: the first of equals, the last nan; padding has position -1 and loses to all else."""
    (value, position), (other, at) = best, challenger
    wins = (other > value) | ((position < 0) & (at >= 0))
    if jnp.issubdtype(value.dtype, np.floating):
        wins = wins | (jnp.isnan(other) & (at >= 0))
    return jnp.where(wins, other, value), jnp.where(wins, at, position)


def _max_along(values, positions, axis, w):
    """Windows of one dimension reduced; as the reductions are done one dimension after another, the cost is their sum."""

    def padded(x, fill):
        return lax.pad(x, jnp.asarray(fill, x.dtype), [(w.padding, max(w.after, 0), 0) if d == axis else (0, 0, 0) for d in range(x.ndim)])

    values, positions = padded(values, low(values.dtype)), padded(positions, -1)
    taps = [tuple(strided(x, axis, k * w.dilation, w.count, w.stride) for x in (values, positions)) for k in range(w.kernel)]
    return functools.reduce(_larger, taps)


def _max_pool(out, x, kernel_size, stride=(), padding=0, dilation=1, _ceil_mode=False, *, n):
    axes = range(x.ndim - n, x.ndim)
    geometry = windows(x.shape[-n:], out[0].shape[-n:], kernel_size, stride, padding, dilation)
    values, positions = x, jnp.asarray(_flat_positions(x.shape[-n:], x.ndim), np.int64)
    for axis, w in reversed(list(zip(axes, geometry, strict=True))):
        values, positions = _max_along(values, jnp.broadcast_to(positions, values.shape), axis, w)
    return values, positions


_MOST_SELECTS = 32  # windows of more elements than this are scattered everywhere: a select for each would cost more


def _scattered(out, grad, positions, n):
    """``grad`` added at its positions within each plane."""
    planes = math.prod(out.shape[:-n])
    size = math.prod(out.shape[-n:])
    plane = jnp.arange(planes)[:, None]
    wide = grad.astype(opmath(grad.dtype)).reshape(planes, -1)
    result = jnp.zeros((planes, size), wide.dtype).at[plane, positions.reshape(planes, -1)].add(wide, mode="drop")
    return result.reshape(out.shape).astype(out.dtype)


def _selected(grad, positions, geometry, shape):
    """For every element of a window, the gradients whose maximum it was, put in its place, all added up."""
    n = len(geometry)
    first = grad.ndim - n
    wide = grad.astype(opmath(grad.dtype))
    strides = [math.prod(shape[first + i + 1 :]) for i in range(n)]
    total = jnp.zeros(shape, wide.dtype)
    for offset in np.ndindex(*(w.kernel for w in geometry)):
        source, edges = 0, [(0, 0, 0)] * first
        for i, (w, k) in enumerate(zip(geometry, offset, strict=True)):
            start = k * w.dilation - w.padding
            source = source + along((np.arange(w.count) * w.stride + start) * strides[i], first + i, grad.ndim)
            edges.append((start, w.size - start - ((w.count - 1) * w.stride + 1), w.stride - 1))
        # a start outside of the plane along one dimension can alias another row's position, but lax.pad cuts it off
        total = total + lax.pad(jnp.where(positions == source, wide, 0), jnp.zeros((), wide.dtype), edges)
    return total


def _max_pool_backward(out, grad, x, kernel_size, stride, padding, dilation, _ceil_mode, positions, *, n):
    geometry = windows(x.shape[-n:], grad.shape[-n:], kernel_size, stride, padding, dilation)
    # XLA:CPU scatters one after another, which is cheap there; accelerators would have to order the additions
    if jax.default_backend() == "cpu" or math.prod(w.kernel for w in geometry) > _MOST_SELECTS:
        return _scattered(out, grad, positions, n)
    return _selected(grad, positions, geometry, x.shape).astype(out.dtype)


def _sum_windows(x, geometry):
    for axis, w in zip(range(x.ndim - len(geometry), x.ndim), geometry, strict=True):
        edges = [(w.padding, max(w.after, 0), 0) if d == axis else (0, 0, 0) for d in range(x.ndim)]
        padded = lax.pad(x, jnp.zeros((), x.dtype), edges)
        x = functools.reduce(jnp.add, [strided(padded, axis, k, w.count, w.stride) for k in range(w.kernel)])
    return x


def _divisor(geometry, ndim, count_include_pad, divisor_override):
    """How many elements each window has, with the padding or without, but never what ceil mode adds behind it."""
    if divisor_override is not None:
        return np.array(divisor_override)
    total = np.array(1)
    for axis, w in zip(range(ndim - len(geometry), ndim), geometry, strict=True):
        start = np.arange(w.count) * w.stride - w.padding
        end = np.minimum(start + w.kernel, w.size + w.padding)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, w.size)
        total = total * along(end - start, axis, ndim)
    return total


def _avg_pool(out, x, kernel_size, stride=(), padding=0, _ceil_mode=False, count_include_pad=True, divisor_override=None, *, n):
    geometry = windows(x.shape[-n:], out.shape[-n:], kernel_size, stride, padding)
    dtype = opmath(x.dtype)
    divisor = _divisor(geometry, x.ndim, count_include_pad, divisor_override)
    total = _sum_windows(x.astype(dtype), geometry)
    if not jnp.issubdtype(dtype, np.inexact):
        return lax.div(total, jnp.broadcast_to(jnp.asarray(divisor, dtype), total.shape))
    return (total / divisor.astype(dtype)).astype(out.dtype)


def _avg_pool_backward(out, grad, x, kernel_size, stride, padding, _ceil_mode, count_include_pad, divisor_override, *, n):
    geometry = windows(x.shape[-n:], grad.shape[-n:], kernel_size, stride, padding)
    dtype = opmath(x.dtype)
    divisor = _divisor(geometry, x.ndim, count_include_pad, divisor_override).astype(dtype)
    if grad.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    spread = transposed(lambda v: _sum_windows(v, geometry), x.shape, dtype)
    return spread(grad.astype(dtype) / divisor).astype(out.dtype)


def _adaptive_bounds(size, count):
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


def _adaptive_average(x, sizes):
    """Windows of one dimension after another; a size that divides evenly is a reshape and a mean."""
    for axis, count in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        size = x.shape[axis]
        if count and size % count == 0:
            x = x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]).mean(axis + 1)
        else:
            bounds = zip(*_adaptive_bounds(size, count), strict=True)
            means = [lax.slice_in_dim(x, int(a), int(b), 1, axis).mean(axis, keepdims=True) for a, b in bounds]
            x = jnp.concatenate(means, axis) if means else lax.slice_in_dim(x, 0, 0, 1, axis)
    return x


def _adaptive_avg_pool(out, x, _output_size, *, n):
    return _adaptive_average(x.astype(opmath(x.dtype)), out.shape[-n:]).astype(out.dtype)


def _adaptive_avg_pool_backward(out, grad, x, *, n):
    dtype = opmath(grad.dtype)
    if grad.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    spread = transposed(lambda v: _adaptive_average(v, grad.shape[-n:]), x.shape, dtype)
    return spread(grad.astype(dtype)).astype(out.dtype)


def _adaptive_max_along(values, positions, axis, count):
    start, end = _adaptive_bounds(values.shape[axis], count)
    best: Any = None
    for k in range(int((end - start).max())):
        inside = start + k < end
        at = np.where(inside, start + k, start)
        tap = jnp.take(values, at, axis), jnp.take(positions, at, axis)
        if not inside.all():
            tap = tap[0], jnp.where(along(inside, axis, values.ndim), tap[1], -1)
            tap = jnp.where(tap[1] < 0, jnp.asarray(low(values.dtype)), tap[0]), tap[1]
        best = tap if best is None else _larger(best, tap)
    return best


def _adaptive_max_pool(out, x, _output_size, *, n):
    values, positions = x, jnp.asarray(_flat_positions(x.shape[-n:], x.ndim), np.int64)
    if 0 in out[0].shape:
        return tuple(jnp.zeros(o.shape, o.dtype) for o in out)
    for axis in reversed(range(x.ndim - n, x.ndim)):
        values, positions = _adaptive_max_along(values, jnp.broadcast_to(positions, values.shape), axis, out[0].shape[axis])
    return values, positions


def _adaptive_max_pool_backward(out, grad, x, positions, *, n):
    return _scattered(out, grad, positions, n)


def _max_unpool(out, x, positions, *_geometry, n):
    planes, size = math.prod(out.shape[:-n]), math.prod(out.shape[-n:])
    plane = jnp.arange(planes)[:, None]
    result = jnp.zeros((planes, size), x.dtype).at[plane, from_front(positions.reshape(planes, -1), size)]
    return result.set(x.reshape(planes, -1), mode="drop").reshape(out.shape)


def _of(function, n):
    return lowering(functools.partial(function, n=n))


TABLE = {
    **{f"max_pool{n}d_with_indices.default": _of(_max_pool, n) for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward.default": _of(_max_pool_backward, n) for n in (2, 3)},
    **{f"avg_pool{n}d.default": _of(_avg_pool, n) for n in (2, 3)},
    **{f"avg_pool{n}d_backward.default": _of(_avg_pool_backward, n) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d.default": _of(_adaptive_avg_pool, n) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward.default": _of(_adaptive_avg_pool_backward, n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d.default": _of(_adaptive_max_pool, n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d_backward.default": _of(_adaptive_max_pool_backward, n) for n in (2, 3)},
    **{f"max_unpool{n}d.default": _of(_max_unpool, n) for n in (2, 3)},
}
