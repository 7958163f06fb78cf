"""Tensors made from nothing: constants, ranges, identity matrices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering, number


def zeros(out, *_arguments, **_options):
    return jnp.zeros(out.shape, out.dtype)


def ones(out, *_arguments, **_options):
    return jnp.ones(out.shape, out.dtype)


def full(out, _size_or_like, value):
    """A Python number beyond the range of an integer dtype wraps, as PyTorch's does."""
    value = np.asarray(value).astype(out.dtype) if isinstance(value, int) else number(value, out.dtype)
    return jnp.broadcast_to(value, out.shape)


def new_full(out, _like, _size, value):
    return full(out, None, value)


def scalar_tensor(out, value):
    return number(value, out.dtype)


def arange_start_step(out, start, end, step=1):
    """Float ranges are calculated in float64, as the CPU does, unless float32 holds every element exactly."""
    count = out.shape[0]
    if not jnp.issubdtype(out.dtype, np.floating):
        return (lax.iota(np.dtype(np.int64), count) * int(step) + int(start)).astype(out.dtype)
    exact = all(float(v).is_integer() and abs(v) < 2**24 for v in (start, end, step))
    dtype = np.dtype(np.float32) if exact and out.dtype != np.float64 else np.dtype(np.float64)
    return (number(start, dtype) + lax.iota(dtype, count) * number(step, dtype)).astype(out.dtype)


def arange(out, end):
    return arange_start_step(out, 0, end)


def _evenly(start, end, steps, dtype):
    """``steps`` numbers from ``start`` to ``end``, symmetric about the middle as PyTorch's."""
    start, end = number(start, dtype), number(end, dtype)
    position = lax.iota(np.dtype(np.int64), steps)
    step = (end - start) / number(max(steps - 1, 1), dtype)
    from_start = start + step * position.astype(dtype)
    from_end = end - step * (steps - 1 - position).astype(dtype)
    return jnp.where(position < max(steps // 2, 1), from_start, from_end)


def _spaced_dtype(dtype):
    return opmath(dtype) if jnp.issubdtype(dtype, np.inexact) else np.dtype(np.float64)


def _spaced(out, start, end, steps):
    """Integers lie between ends that are integers, cut towards zero, also where the ends are exponents."""
    dtype = _spaced_dtype(out.dtype)
    if not jnp.issubdtype(out.dtype, np.inexact):
        start, end = (jnp.trunc(number(edge, dtype)) for edge in (start, end))
    return _evenly(start, end, steps, dtype)


def linspace(out, start, end, steps):
    return _spaced(out, start, end, steps).astype(out.dtype)


def logspace(out, start, end, steps, base=10.0):
    return jnp.power(number(base, _spaced_dtype(out.dtype)), _spaced(out, start, end, steps)).astype(out.dtype)


def eye(out, n, m=None):
    return jnp.eye(n, m, dtype=out.dtype)


def _triangle(out, counts, first_columns):
    """Row and column of every element, row by row, of a part of a matrix that has ``counts[r]`` neighbours in row ``r``."""
    total = out.shape[1]
    rows = jnp.repeat(jnp.arange(len(counts)), jnp.asarray(counts), total_repeat_length=total)
    before = np.cumsum(counts) - counts
    columns = jnp.arange(total) - jnp.asarray(before - first_columns)[rows]
    return jnp.stack([rows, columns]).astype(out.dtype)


def tril_indices(out, row, col, offset=0):
    if out.shape[1] == 0:
        return jnp.zeros(out.shape, out.dtype)
    counts = np.clip(np.arange(row) + offset + 1, 0, col)
    return _triangle(out, counts, np.zeros_like(counts))


def triu_indices(out, row, col, offset=0):
    if out.shape[1] == 0:
        return jnp.zeros(out.shape, out.dtype)
    first = np.clip(np.arange(row) + offset, 0, col)
    return _triangle(out, col - first, first)


_RANGE = ("start", "end", "step")

TABLE = {
    **{
        name: lowering(zeros)
        for name in (
            "zeros.default",
            "zeros_like.default",
            "new_zeros.default",
            "_efficientzerotensor.default",
            "zero.default",
            "empty.memory_format",
            "empty_like.default",
            "empty_strided.default",
            "empty_permuted.default",
            "new_empty.default",
            "new_empty_strided.default",
        )
    },
    **{name: lowering(ones) for name in ("ones.default", "ones_like.default", "new_ones.default")},
    "full.default": lowering(full),
    "full_like.default": lowering(full),
    "fill.Scalar": lowering(full),
    "fill.Tensor": lowering(full),
    "new_full.default": lowering(new_full),
    "scalar_tensor.default": lowering(scalar_tensor),
    "arange.default": lowering(arange, constants=_RANGE),
    "arange.start": lowering(arange_start_step, constants=_RANGE),
    "arange.start_step": lowering(arange_start_step, constants=_RANGE),
    "range.default": lowering(arange_start_step, constants=_RANGE),
    "range.step": lowering(arange_start_step, constants=_RANGE),
    **{f"linspace.{overload}": lowering(linspace) for overload in ("default", "Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")},
    **{f"logspace.{overload}": lowering(logspace) for overload in ("default", "Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor")},
    "eye.default": lowering(eye),
    "eye.m": lowering(eye),
    "tril_indices.default": lowering(tril_indices),
    "triu_indices.default": lowering(triu_indices),
}
