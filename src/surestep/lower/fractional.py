"""Maximum pooling over windows whose distance is no whole number: where they lie hangs on a random number a plane and dimension."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from surestep.lower.shared import ints, opmath
from surestep.lower.spec import lowering


def _starts(samples, size, count, kernel):
    """Where the windows of each plane begin along one dimension. PyTorch rounds to the image's dtype at each step."""

    def rounded(x):
        return lax.reduce_precision(x, format.bits - format.nmant - 1, format.nmant)

    format, wide = jnp.finfo(samples.dtype), opmath(samples.dtype)
    samples, index = samples.astype(wide)[:, None], jnp.arange(count)
    step = rounded(jnp.asarray(size - kernel, wide) / max(count - 1, 1))
    starts = rounded(rounded(index.astype(wide) + samples) * step).astype(int) - rounded(samples * step).astype(int)
    return jnp.where(index == count - 1, size - kernel, starts)


def _places(samples, sizes, kernel, count):
    """The elements of all windows, by their place in the plane: (planes, windows, elements)."""
    rank, planes = len(sizes), len(samples)
    places = jnp.zeros((), int)
    for d in range(rank):
        along = _starts(samples[:, d], sizes[d], count[d], kernel[d])[:, :, None] + jnp.arange(kernel[d])
        shape = [planes] + [1] * 2 * rank
        shape[1 + d], shape[1 + rank + d] = count[d], kernel[d]
        places = places * sizes[d] + along.reshape(shape)
    return places.reshape(planes, math.prod(count), math.prod(kernel))


def pool(rank):
    def fractional_max_pool(out, x, kernel_size, output_size, random_samples):
        if 0 in out[0].shape:
            return tuple(jnp.zeros(o.shape, o.dtype) for o in out)
        sizes = x.shape[-rank:]
        samples = random_samples.reshape(-1, rank)[:, :: -1 if rank == 2 else 1]  # PyTorch's have the width first in 2d, last in 3d
        places = _places(samples, sizes, ints(kernel_size, rank), ints(output_size, rank))
        planes = x.reshape(len(places), -1)
        values = jnp.take_along_axis(planes, places.reshape(len(places), -1), 1).reshape(places.shape)
        missing = jnp.isnan(values)
        last_nan = values.shape[-1] - 1 - jnp.argmax(missing[..., ::-1], -1)
        best = jnp.where(missing.any(-1), last_nan, jnp.argmax(values, -1))[..., None]
        return tuple(
            jnp.take_along_axis(of, best, -1).reshape(o.shape).astype(o.dtype) for of, o in zip((values, places), out, strict=True)
        )

    return fractional_max_pool


def pool_backward(rank):
    def fractional_max_pool_backward(out, grad, x, _kernel_size, _output_size, indices):
        if 0 in out.shape:
            return jnp.zeros(out.shape, out.dtype)
        count = math.prod(x.shape[:-rank])
        zeros = jnp.zeros((count, math.prod(x.shape[-rank:])), opmath(grad.dtype))
        spread = zeros.at[jnp.arange(count)[:, None], indices.reshape(count, -1)].add(grad.reshape(count, -1).astype(zeros.dtype))
        return spread.reshape(out.shape).astype(out.dtype)

    return fractional_max_pool_backward


TABLE = {
    **{f"fractional_max_pool{rank}d.default": lowering(pool(rank)) for rank in (2, 3)},
    **{f"fractional_max_pool{rank}d_backward.default": lowering(pool_backward(rank)) for rank in (2, 3)},
}
