"""Padding with a constant, a mirror image or the edge, and windows laid out as columns; each with its gradient."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from surestep.lower.shared import ints, strided, transposed
from surestep.lower.spec import lowering, number


def constant_pad_nd(out, x, pad, value=0):
    """Pairs count from the last dimension; a negative one cuts."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    return lax.pad(x, number(value, x.dtype), [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1])


def _reflection(x, axis, count, at_end):
    """``count`` elements next to the edge, which itself isn't repeated, in mirror order."""
    size = x.shape[axis]
    start = size - 1 - count if at_end else 1
    return lax.rev(lax.slice_in_dim(x, start, start + count, 1, axis), (axis,))


def _replication(x, axis, count, at_end):
    size = x.shape[axis]
    edge = lax.slice_in_dim(x, size - 1, size, 1, axis) if at_end else lax.slice_in_dim(x, 0, 1, 1, axis)
    return jnp.broadcast_to(edge, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _padded(x, border, padding):
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        before, after = padding[2 * i], padding[2 * i + 1]
        size = x.shape[axis]
        parts = [lax.slice_in_dim(x, max(-before, 0), size - max(-after, 0), 1, axis)]
        if before > 0:
            parts.insert(0, border(x, axis, before, False))
        if after > 0:
            parts.append(border(x, axis, after, True))
        x = jnp.concatenate(parts, axis)
    return x


def pad(border):
    def lower(out, x, padding):
        return _padded(x, border, padding)

    def backward(out, grad, x, padding):
        return transposed(lambda v: _padded(v, border, padding), x.shape, grad.dtype)(grad)

    return lower, backward


def _columns(x, kernel, dilation, padding, stride):
    """Every window of the N, C, H, W image as a column: N, C * kernel, windows."""
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)])
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], kernel, dilation, stride, strict=True)]
    rows = [strided(x, 2, i * dilation[0], counts[0], stride[0]) for i in range(kernel[0])]
    taps = [strided(row, 3, j * dilation[1], counts[1], stride[1]) for row in rows for j in range(kernel[1])]
    return jnp.stack(taps, 2).reshape(x.shape[0], x.shape[1] * len(taps), counts[0] * counts[1])


def im2col(out, x, kernel_size, dilation, padding, stride):
    geometry = [ints(v, 2) for v in (kernel_size, dilation, padding, stride)]
    return _columns(x.reshape(-1, *x.shape[-3:]), *geometry).reshape(out.shape)


def col2im(out, x, output_size, kernel_size, dilation, padding, stride):
    geometry = [ints(v, 2) for v in (kernel_size, dilation, padding, stride)]
    columns = x.reshape(-1, *x.shape[-2:])
    image = (columns.shape[0], out.shape[-3], *out.shape[-2:])
    if x.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    return transposed(
        functools.partial(_columns, **dict(zip(("kernel", "dilation", "padding", "stride"), geometry, strict=True))), image, x.dtype
    )(columns).reshape(out.shape)


_BORDERS = {"reflection": pad(_reflection), "replication": pad(_replication)}

TABLE = {
    "constant_pad_nd.default": lowering(constant_pad_nd),
    **{f"{name}_pad{n}d.default": lowering(forward) for name, (forward, _) in _BORDERS.items() for n in (1, 2, 3)},
    **{f"{name}_pad{n}d_backward.default": lowering(backward) for name, (_, backward) in _BORDERS.items() for n in (1, 2, 3)},
    "im2col.default": lowering(im2col),
    "col2im.default": lowering(col2im),
}
