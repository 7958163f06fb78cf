"""Sorting, selection by rank, and search in sorted sequences."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import cast, is_integral, stand_in
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering, promoted


def _sorted(x, dim, descending=False):
    """Values and indices by a stable sort, nan as the largest; descending is ascending seen backwards, so it is stable too."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    places = lax.broadcasted_iota(np.int64, x.shape, axis)
    if descending:
        x, places = jnp.flip(x, axis), jnp.flip(places, axis)
    values, places = lax.sort((x, places), dimension=axis, is_stable=True, num_keys=1)
    return (jnp.flip(values, axis), jnp.flip(places, axis)) if descending else (values, places)


def sort(outs, x, dim=-1, descending=False):
    return _sorted(x, dim, descending)


def sort_stable(outs, x, *, stable, dim=-1, descending=False):
    return _sorted(x, dim, descending)


def topk(outs, x, k, dim=-1, largest=True, sorted=True):
    """By XLA's own partial sort, which has a total order: nan is the largest where its sign is plus, so it gets the sign here."""
    shapes = [out.shape for out in outs]
    x = jnp.moveaxis(jnp.atleast_1d(x), dim, -1)
    if is_integral(x.dtype):
        keys = x if largest else ~x
    else:
        keys = jnp.where(jnp.isnan(x), cast(np.copysign(np.nan, 1 if largest else -1).item(), x.dtype), x if largest else -x)
    places = lax.top_k(keys, k)[1].astype(np.int64)
    values = jnp.take_along_axis(x, places, axis=-1)
    return tuple(jnp.moveaxis(a, -1, dim).reshape(shape) for a, shape in zip((values, places), shapes, strict=True))


def _at(values, places, rank, dim, outs):
    """The element of each sorted row at its rank."""
    index = jnp.expand_dims(jnp.asarray(rank, np.int64), dim) if jnp.ndim(rank) else jnp.full((1,) * values.ndim, rank, np.int64)
    index = jnp.broadcast_to(index, (*values.shape[:dim], 1, *values.shape[dim + 1 :]))
    return tuple(jnp.take_along_axis(a, index, axis=dim).reshape(out.shape) for a, out in zip((values, places), outs, strict=True))


def kthvalue(outs, x, k, dim=-1, keepdim=False):
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    return _at(*_sorted(x, dim), k - 1, dim % x.ndim, outs)


def median_dim(outs, x, dim, keepdim=False):
    """The lower of two middle values; nan if there is any."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    rank = jnp.full(x.shape[:axis] + x.shape[axis + 1 :], (x.shape[axis] - 1) // 2, np.int64)
    values, places = _sorted(x, dim)
    if not is_integral(x.dtype):  # the first nan follows all numbers
        numbers = jnp.sum(~jnp.isnan(x), axis=axis)
        rank = jnp.where(numbers < x.shape[axis], numbers, rank)
    return _at(values, places, rank, axis, outs)


def nanmedian_dim(outs, x, dim, keepdim=False):
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    numbers = jnp.sum(~jnp.isnan(x) if not is_integral(x.dtype) else jnp.ones_like(x, np.bool_), axis=axis)
    return _at(*_sorted(x, dim), jnp.maximum(numbers - 1, 0) // 2, axis, outs)


def of_all(function):
    """A median over all elements, from the one along a dimension."""

    def lowered(out, x):
        if not x.size:
            return jnp.full(out.shape, jnp.nan if not is_integral(out.dtype) else jnp.iinfo(out.dtype).min, out.dtype)
        return function((out, out._replace(dtype=np.dtype(np.int64))), x.reshape(-1), 0)[0]

    return lowered


def mode(outs, x, dim=-1, keepdim=False):
    """The smallest of the most frequent values, and the last place of it."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    values, places = _sorted(x, dim)
    place = lax.broadcasted_iota(np.int64, x.shape, axis)
    previous = jnp.roll(values, 1, axis)
    starts = lax.cummax(jnp.where((place == 0) | (values != previous), place, 0), axis=axis)
    run = place - starts  # how many equal ones came before
    best = jnp.argmax(run, axis=axis)  # the end of the first longest run
    return _at(values, places, best, axis, outs)


def _insertion(boundaries, values, right):
    """Where each value goes: the number of boundaries below it (up to it, with ``right``), nan above all."""
    return jnp.searchsorted(boundaries, values, side="right" if right else "left")


def bucketize(out, values, boundaries, *, out_int32=False, right=False):
    dtype = promoted(values, boundaries)
    return _insertion(cast(boundaries, dtype), cast(values, dtype), right).astype(out.dtype)


def bucketize_scalar(out, value, boundaries, *, out_int32=False, right=False):
    dtype = promoted(boundaries, stand_in(value))
    return _insertion(cast(boundaries, dtype), cast(value, dtype), right).astype(out.dtype)


def searchsorted(out, sequence, values, *, out_int32=False, right=False, side=None, sorter=None):
    right = right or side == "right"
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, axis=-1)
    dtype = promoted(sequence, stand_in(values)) if not hasattr(values, "dtype") else promoted(sequence, values)
    sequence, values = cast(sequence, dtype), cast(values, dtype)
    if sequence.ndim == 1:
        return _insertion(sequence, values, right).astype(out.dtype)
    if not values.size:
        return jnp.zeros(out.shape, out.dtype)
    rows = jnp.vectorize(lambda row, wanted: _insertion(row, wanted, right), signature="(n),(m)->(m)")
    return rows(sequence, values).astype(out.dtype)


def isin(out, elements, tests, *, assume_unique=False, invert=False):
    elements, tests = jnp.asarray(elements), jnp.asarray(tests)
    dtype = promoted(*(x if x.ndim else jnp.atleast_1d(x) for x in (elements, tests)))
    elements, tests = cast(elements, dtype), cast(tests, dtype).reshape(-1)
    if not tests.size:
        return jnp.full(out.shape, invert)
    ordered = jnp.sort(tests)
    found = ordered[jnp.minimum(jnp.searchsorted(ordered, elements), tests.size - 1)] == elements
    return found != invert


def histc(out, x, bins=100, low=0, high=0):
    """Counts of equally wide bins, the last with its upper end; equal limits mean those of the data."""
    dtype = opmath(x.dtype)
    x, low, high = cast(x.reshape(-1), dtype), cast(low, dtype), cast(high, dtype)
    if x.size:
        low, high = jnp.where(low == high, jnp.min(x), low), jnp.where(low == high, jnp.max(x), high)
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    place = jnp.minimum(jnp.floor((x - low) * (bins / (high - low))), bins - 1)
    inside = (x >= low) & (x <= high)
    counts = jnp.zeros((bins,), np.int64).at[jnp.where(inside, place, bins).astype(np.int64)].add(1, mode="drop")
    return cast(counts, out.dtype)


_FUNCTIONS = {
    "sort.default": sort, "sort.stable": sort_stable, "topk.default": topk,
    "kthvalue.default": kthvalue, "mode.default": mode,
    "median.dim": median_dim, "nanmedian.dim": nanmedian_dim,
    "median.default": of_all(median_dim), "nanmedian.default": of_all(nanmedian_dim),
    "searchsorted.Tensor": searchsorted, "searchsorted.Scalar": searchsorted,
    "bucketize.Tensor": bucketize, "bucketize.Scalar": bucketize_scalar,
    "isin.Tensor_Tensor": isin, "isin.Tensor_Scalar": isin, "isin.Scalar_Tensor": isin,
    "histc.default": histc,
}  # fmt: skip
TABLE = {name: lowering(function) for name, function in _FUNCTIONS.items()}
