"""Elements moved, repeated, cut out or put back, never calculated with: joins, flips, triangles, copies of views."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import axis_of, strided, transposed
from surestep.lower.spec import lowering


def cat(out, tensors, dim=0):
    """An empty 1-d tensor joins with anything, as it always did in PyTorch."""
    parts = [t.astype(out.dtype) for t in tensors if t.shape != (0,)]
    return jnp.concatenate(parts, axis_of(dim, len(out.shape))) if parts else jnp.zeros(out.shape, out.dtype)


def stack(out, tensors, dim=0):
    return jnp.stack([t.astype(out.dtype) for t in tensors], dim)


def block_diag(out, tensors):
    result = jnp.zeros(out.shape, out.dtype)
    row = column = 0
    for tensor in tensors:
        block = jnp.atleast_2d(tensor).astype(out.dtype)
        result = lax.dynamic_update_slice(result, block, (row, column))
        row, column = row + block.shape[0], column + block.shape[1]
    return result


def roll(out, x, shifts, dims=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if x.size == 0:
        return x
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, tuple([dims] if isinstance(dims, int) else dims)) if x.ndim else x


def flip(out, x, dims):
    return lax.rev(x, tuple(axis_of(d, x.ndim) for d in dims)) if x.ndim else x


def rot90(out, x, k=1, dims=(0, 1)):
    return jnp.rot90(x, k, (dims[0], dims[1]))


def repeat(out, x, repeats):
    return jnp.tile(x, tuple(repeats)).reshape(out.shape)


def repeat_interleave(out, repeats, *, output_size=None):
    if out.shape[0] == 0:
        return jnp.zeros(out.shape, out.dtype)
    positions = jnp.arange(repeats.shape[0], dtype=out.dtype)
    return jnp.repeat(positions, repeats, total_repeat_length=out.shape[0])


def tril(out, x, diagonal=0):
    return _triangle(x, lambda row, column: column - row <= diagonal)


def triu(out, x, diagonal=0):
    return _triangle(x, lambda row, column: column - row >= diagonal)


def _triangle(x, keep):
    row = lax.broadcasted_iota(np.dtype(np.int64), x.shape[-2:], 0)
    column = lax.broadcasted_iota(np.dtype(np.int64), x.shape[-2:], 1)
    return jnp.where(keep(row, column), x, jnp.zeros((), x.dtype))


def _on_diagonal(x, values, offset):
    """``x`` with its last two dimensions' diagonal replaced by ``values``."""
    rows, columns = x.shape[-2:]
    start = max(-offset, 0)
    count = values.shape[-1]
    if count == 0:
        return x
    edges = [(0, 0, 0)] * (values.ndim - 1) + [(start, rows - start - count, 0)]
    spread = lax.pad(values, jnp.zeros((), values.dtype), edges)[..., None]
    row = lax.broadcasted_iota(np.dtype(np.int64), (rows, columns), 0)
    column = lax.broadcasted_iota(np.dtype(np.int64), (rows, columns), 1)
    return jnp.where(column == row + offset, spread, x)


def diag_embed(out, x, offset=0, dim1=-2, dim2=-1):
    size = x.shape[-1] + abs(offset)
    square = _on_diagonal(jnp.zeros((*x.shape[:-1], size, size), x.dtype), x, offset)
    return jnp.moveaxis(square, (-2, -1), (dim1, dim2))


def diagonal_scatter(out, x, source, offset=0, dim1=0, dim2=1):
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    return jnp.moveaxis(_on_diagonal(moved, source.astype(x.dtype), offset), (-2, -1), (dim1, dim2))


def diagonal_backward(out, grad, _input_sizes, offset, dim1, dim2):
    return diagonal_scatter(out, jnp.zeros(out.shape, out.dtype), grad, offset, dim1, dim2)


def diagonal_copy(out, x, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(x, offset, dim1, dim2)


def _slice_bounds(size, start, end, step):
    start, end, step = slice(start, end, step).indices(size)
    return start, max(0, math.ceil((end - start) / step)), step


def slice_scatter(out, x, source, dim=0, start=None, end=None, step=1):
    axis = axis_of(dim, x.ndim)
    start, count, step = _slice_bounds(x.shape[axis], start, end, step)
    if count == 0:
        return x
    source = jnp.broadcast_to(source.astype(x.dtype), (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    spread = _spread(source, axis, start, step, x.shape[axis])
    position = np.arange(x.shape[axis]) - start
    written = (position >= 0) & (position % step == 0) & (position < count * step)
    return jnp.where(written.reshape([-1 if d == axis else 1 for d in range(x.ndim)]), spread, x)


def _spread(x, axis, start, step, size):
    """``x`` placed every ``step`` elements from ``start`` on, zero between, in ``size`` elements along ``axis``."""
    count = x.shape[axis]
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (start, size - start - ((count - 1) * step + 1), step - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), edges)


def slice_backward(out, grad, input_sizes, dim, start, end, step):
    axis = axis_of(dim, grad.ndim)
    start, count, step = _slice_bounds(input_sizes[axis], start, end, step)
    return _spread(grad, axis, start, step, input_sizes[axis]) if count else jnp.zeros(out.shape, out.dtype)


def select_scatter(out, x, source, dim, index):
    axis = axis_of(dim, x.ndim)
    start = index % x.shape[axis]
    return slice_scatter(out, x, jnp.expand_dims(source, axis), axis, start, start + 1)


def select_backward(out, grad, input_sizes, dim, index):
    axis = axis_of(dim, len(input_sizes))
    return _spread(jnp.expand_dims(grad, axis), axis, index % input_sizes[axis], 1, input_sizes[axis])


_MOST_SLICES = 64  # beyond, one gather compiles faster than a slice for each


def _unfold(x, axis, size, step):
    count = (x.shape[axis] - size) // step + 1
    if count <= min(size, _MOST_SLICES):
        windows = [lax.slice_in_dim(x, i * step, i * step + size, 1, axis) for i in range(count)]
        return jnp.moveaxis(jnp.stack(windows, axis), axis + 1, -1)
    if size <= _MOST_SLICES:
        return jnp.stack([strided(x, axis, k, count, step) for k in range(size)], -1)
    positions = np.arange(count)[:, None] * step + np.arange(size)
    return jnp.moveaxis(jnp.take(x, positions, axis), axis + 1, -1)


def unfold_copy(out, x, dimension, size, step):
    if x.ndim == 0:
        return x.reshape(out.shape)
    return _unfold(x, axis_of(dimension, x.ndim), size, step).reshape(out.shape)


def unfold_backward(out, grad, input_sizes, dim, size, step):
    if not input_sizes or grad.size == 0:
        return grad.reshape(out.shape) if grad.size else jnp.zeros(out.shape, out.dtype)
    axis = axis_of(dim, len(input_sizes))
    return transposed(lambda x: _unfold(x, axis, size, step), input_sizes, grad.dtype)(grad)


def channel_shuffle(out, x, groups):
    grouped = x.reshape(x.shape[0], groups, -1, *x.shape[2:]) if x.size else x
    return jnp.swapaxes(grouped, 1, 2).reshape(out.shape) if x.size else x


def pixel_shuffle(out, x, factor):
    *batch, channels, height, width = x.shape
    n = len(batch)
    split = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    return split.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(out.shape)


def pixel_unshuffle(out, x, factor):
    *batch, channels, height, width = x.shape
    n = len(batch)
    split = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    return split.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(out.shape)


def linalg_cross(out, x, y, *, dim=-1):
    x, y = jnp.broadcast_to(x, out.shape), jnp.broadcast_to(y, out.shape)

    def turn(v, by):
        return jnp.roll(v, by, dim)

    return turn(x, -1) * turn(y, -2) - turn(x, -2) * turn(y, -1)


def reshaped(out, x, *_arguments, **_options):
    """The copy of a view that keeps the elements' order."""
    return x.reshape(out.shape)


def expand_copy(out, x, size, *, implicit=False):
    return jnp.broadcast_to(x, out.shape)


def permute_copy(out, x, dims):
    return x.transpose([axis_of(d, x.ndim) for d in dims])


def transpose_copy(out, x, dim0, dim1):
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


def t_copy(out, x):
    return x.T


def select_copy(out, x, dim, index):
    axis = axis_of(dim, x.ndim)
    return lax.index_in_dim(x, index % x.shape[axis], axis, keepdims=False)


def slice_copy(out, x, dim=0, start=None, end=None, step=1):
    axis = axis_of(dim, x.ndim)
    start, count, step = _slice_bounds(x.shape[axis], start, end, step)
    return strided(x, axis, start, count, step)


def narrow_copy(out, x, dim, start, length):
    axis = axis_of(dim, x.ndim)
    start = start % x.shape[axis] if start < 0 else start
    return lax.slice_in_dim(x, start, start + length, 1, axis)


def split(out, x, _sizes, dim=0):
    axis = axis_of(dim, x.ndim)
    ends = np.cumsum([part.shape[axis] for part in out])
    return [lax.slice_in_dim(x, int(end) - part.shape[axis], int(end), 1, axis) for part, end in zip(out, ends, strict=True)]


def unbind_copy(out, x, dim=0):
    return [select_copy(part, x, dim, i) for i, part in enumerate(out)]


TABLE = {
    "cat.default": lowering(cat),
    "stack.default": lowering(stack),
    "_stack.default": lowering(stack),
    "block_diag.default": lowering(block_diag),
    "roll.default": lowering(roll),
    "flip.default": lowering(flip),
    "rot90.default": lowering(rot90),
    "repeat.default": lowering(repeat),
    "repeat_interleave.Tensor": lowering(repeat_interleave),
    "tril.default": lowering(tril),
    "triu.default": lowering(triu),
    "diag_embed.default": lowering(diag_embed),
    "diagonal_scatter.default": lowering(diagonal_scatter),
    "diagonal_backward.default": lowering(diagonal_backward),
    "diagonal_copy.default": lowering(diagonal_copy),
    "slice_scatter.default": lowering(slice_scatter),
    "slice_backward.default": lowering(slice_backward),
    "select_scatter.default": lowering(select_scatter),
    "select_backward.default": lowering(select_backward),
    "unfold_copy.default": lowering(unfold_copy),
    "unfold_backward.default": lowering(unfold_backward),
    "channel_shuffle.default": lowering(channel_shuffle),
    "pixel_shuffle.default": lowering(pixel_shuffle),
    "pixel_unshuffle.default": lowering(pixel_unshuffle),
    "linalg_cross.default": lowering(linalg_cross),
    **{
        name: lowering(reshaped)
        for name in (
            "_reshape_copy.default",
            "view_copy.default",
            "alias_copy.default",
            "detach_copy.default",
            "squeeze_copy.default",
            "squeeze_copy.dim",
            "squeeze_copy.dims",
            "unsqueeze_copy.default",
            "lift.default",
            "lift_fresh_copy.default",
        )
    },
    "expand_copy.default": lowering(expand_copy),
    "permute_copy.default": lowering(permute_copy),
    "transpose_copy.int": lowering(transpose_copy),
    "t_copy.default": lowering(t_copy),
    "select_copy.int": lowering(select_copy),
    "slice_copy.Tensor": lowering(slice_copy),
    "narrow_copy.default": lowering(narrow_copy),
    "split_copy.Tensor": lowering(split),
    "split_with_sizes_copy.default": lowering(split),
    "unsafe_split.Tensor": lowering(split),
    "unsafe_split_with_sizes.default": lowering(split),
    "unbind_copy.int": lowering(unbind_copy),
}
