"""What processes do together, inside ``shard_map`` over one device of each: named like JAX's, by what torch_xla calls them.

``groups`` are lists of ordinals, all of them of one size and each ordinal in one; None is one group of all.

All processes must come to their collectives in one order, that of recording. XLA orders what doesn't depend on each other as it likes, in
another way where a program differs in something else; and it takes away an ``optimization_barrier`` before it does so. So the operand of
each collective depends on the result of the one before, by a choice that XLA can't know: ``zero`` is an input of the program. That of the
first depends on ``zero`` alone: XLA takes a constant for the same in all processes, and computes what it thinks is the result itself.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.execute.world import AXIS

SMALL = 1 << 20  # bytes: values up to this size (of all processes) travel together: a small collective costs as much as a middling one
BUCKET = 32 << 20  # bytes: so much of them at most


class Chain:
    """The collectives of one program, one after the other."""

    def __init__(self, zero):
        self.never = zero != 0  # but XLA doesn't know
        self.marks = []  # a number of each result
        self.before = zero.astype(np.float32)  # a number of what comes before the next one

    def run(self, name, operands, options, scale, after):
        """The results of one recorded collective, times ``scale`` where there is one. It begins when ``after`` are computed."""
        for value in after:
            if value.size:
                self.before += _mark(value)
        results = FUNCTIONS[name](self, operands, *options)
        return results if scale is None else [_scaled(value, scale) for value in results]

    def next(self, function, value):
        """``function(value)``, one collective of JAX's, after those before it. Of nothing there is nothing to do."""
        if not value.size:
            return jnp.zeros(jax.eval_shape(function, value).shape, value.dtype)
        flat = value.ravel()
        first = jnp.where(self.never, self.before.astype(value.dtype), flat[0])
        result = function(lax.dynamic_update_index_in_dim(flat, first, 0, 0).reshape(value.shape))
        self.before = _mark(result)
        self.marks.append(self.before)
        return result


def _mark(value):
    first = value.ravel()[0]
    return (first.real if jnp.iscomplexobj(first) else first).astype(np.float32)


def _scaled(value, scale):
    """Integers are scaled as floats, and cut off."""
    return value * scale.astype(value.dtype) if jnp.issubdtype(value.dtype, jnp.inexact) else (value * scale).astype(value.dtype)


def _all_reduce(chain, operands, kind, groups):
    flat = [value.ravel() for value in operands]
    results = _bucketed(flat, lambda whole: chain.next(lambda ready: _reduced(ready, kind, groups), whole))
    return [result.reshape(value.shape) for result, value in zip(results, operands, strict=True)]


def _reduced(value, kind, groups):
    if kind == "sum":
        if value.dtype == bool:
            return lax.pmax(value, AXIS, axis_index_groups=groups)
        return lax.psum(value, AXIS, axis_index_groups=groups)
    if kind in ("min", "max") or value.dtype == bool:
        function = lax.pmin if kind in ("min", "and", "mul") else lax.pmax
        return function(value, AXIS, axis_index_groups=groups)
    stacked = lax.all_gather(value, AXIS, axis_index_groups=groups)
    if kind == "mul":
        return jnp.prod(stacked, axis=0, dtype=value.dtype)
    combine = lax.bitwise_and if kind == "and" else lax.bitwise_or
    return _folded(combine, stacked)


def _folded(combine, stacked):
    result = stacked[0]
    for row in range(1, stacked.shape[0]):
        result = combine(result, stacked[row])
    return result


def _bucketed(values, function, count=1):
    """``function`` of each value, of many in one where they are small: along the last axis, which it leaves as it is. What it gives is
    ``count`` times as large.
    """
    results = {}
    for positions in _buckets(values, count):
        whole = function(jnp.concatenate([values[position] for position in positions], axis=-1))
        start = 0
        for position in positions:
            end = start + values[position].shape[-1]
            results[position] = whole[..., start:end]
            start = end
    return [results[position] for position in range(len(values))]


def _buckets(operands, count):
    found, filled = [], {}
    for position, value in enumerate(operands):
        size = value.size * value.dtype.itemsize * count
        if size > SMALL:  # it isn't copied for it, and doesn't live as long as the smallest that travels with it
            found.append([position])
            continue
        bucket, full = filled.get(value.dtype, (None, BUCKET))
        if bucket is None or full + size > BUCKET:
            bucket, full = [], 0
            found.append(bucket)
        bucket.append(position)
        filled[value.dtype] = bucket, full + size
    return found


def _each(function):
    return lambda chain, operands, *options: [chain.next(lambda ready: function(ready, *options), value) for value in operands]


def _all_gather(chain, operands, dim, groups):
    if dim:
        return _each(_gathered)(chain, operands, dim, groups)

    def gather(whole):
        return chain.next(lambda ready: lax.all_gather(ready, AXIS, axis_index_groups=groups), whole)

    count = len(_of_group(groups))
    rows = _bucketed([value.ravel() for value in operands], gather, count)  # one a process
    return [row.reshape(count * value.shape[0], *value.shape[1:]) for row, value in zip(rows, operands, strict=True)]


def _gathered(value, dim, groups):
    return lax.all_gather(value, AXIS, axis=dim, tiled=True, axis_index_groups=groups)


def _reduce_scatter(chain, operands, kind, dim, groups):
    if dim:
        return _each(_scattered)(chain, operands, kind, dim, groups)

    def scatter(whole):
        return chain.next(lambda ready: _scattered(ready, kind, 0, groups), whole)

    count = len(_of_group(groups))
    shapes = [(value.shape[0] // count, *value.shape[1:]) for value in operands]
    rows = [value.reshape(count, math.prod(shape)) for value, shape in zip(operands, shapes, strict=True)]
    return [part.reshape(shape) for part, shape in zip(_bucketed(rows, scatter), shapes, strict=True)]


def _scattered(value, kind, dim, groups):
    if kind == "sum" and value.dtype != bool:
        return lax.psum_scatter(value, AXIS, scatter_dimension=dim, tiled=True, axis_index_groups=groups)
    part = value.shape[dim] // len(_of_group(groups))
    return lax.dynamic_slice_in_dim(_reduced(value, kind, groups), _position(groups) * part, part, dim)


def _of_group(groups):
    return groups[0] if groups is not None else range(lax.axis_size(AXIS))


def _position(groups):
    """Where this process stands in its group."""
    index = lax.axis_index(AXIS)
    if groups is None:
        return index
    places = np.zeros(lax.axis_size(AXIS), np.int32)
    for group in groups:
        places[list(group)] = range(len(group))
    return jnp.asarray(places)[index]


def _exchanged(value, split, concat, groups):
    return lax.all_to_all(value, AXIS, split, concat, tiled=True, axis_index_groups=groups)


def _permuted(value, pairs, groups):
    return lax.ppermute(value, AXIS, [tuple(pair) for pair in pairs])


def _broadcast(chain, operands, root, groups):
    """By the bits, of which all others' are zero: as exact as a copy."""
    sends = lax.axis_index(AXIS) == root

    def send(value):
        kept = jnp.where(sends, value, jnp.zeros_like(value))
        return chain.next(lambda ready: lax.psum(ready, AXIS, axis_index_groups=groups), kept)

    bits = [_bits(value) for value in operands]
    results = _bucketed([value.ravel() for value in bits], send)
    return [_from_bits(sent.reshape(value.shape), like) for sent, value, like in zip(results, bits, operands, strict=True)]


def _bits(value):
    if jnp.iscomplexobj(value):
        return jnp.stack([_bits(value.real), _bits(value.imag)])
    if value.dtype == bool:
        return value.astype(np.uint8)
    return lax.bitcast_convert_type(value, np.dtype(f"uint{8 * value.dtype.itemsize}"))


def _from_bits(bits, like):
    if jnp.iscomplexobj(like):
        return lax.complex(_from_bits(bits[0], like.real), _from_bits(bits[1], like.imag))
    return bits.astype(bool) if like.dtype == bool else lax.bitcast_convert_type(bits, like.dtype)


FUNCTIONS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _each(_exchanged),
    "exchange": _each(lambda value, lengths, groups: _exchanged(value, 0, 0, groups)),
    "collective_permute": _each(_permuted),
    "broadcast": _broadcast,
    "send": _broadcast,  # to one other
}
