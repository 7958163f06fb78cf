"""Sums, extrema, norms and other reductions over dimensions."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import axes, cast, is_complex, is_floating, is_integral, real_dtype
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def total(out, x, dim=None, keepdim=False):
    x = cast(x, opmath(out.dtype))
    return cast(jnp.sum(x, axis=axes(dim, x.ndim), keepdims=keepdim), out.dtype)


def nansum(out, x, dim=None, keepdim=False):
    return total(out, x if is_integral(x.dtype) else jnp.where(jnp.isnan(x), jnp.zeros_like(x), x), dim, keepdim)


def mean(out, x, dim=None, keepdim=False):
    x = cast(x, opmath(out.dtype))
    dims = axes(dim, x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    return cast(jnp.sum(x, axis=dims, keepdims=keepdim) / cast(count, real_dtype(x.dtype)), out.dtype)


def prod(out, x, dim=None, keepdim=False):
    x = cast(x, opmath(out.dtype))
    return cast(jnp.prod(x, axis=axes(dim, x.ndim), keepdims=keepdim), out.dtype)


def _moments(x, dim, correction, keepdim):
    """Variance and mean in two passes: one pass over squares loses all digits when the mean is large."""
    x = cast(x, opmath(x.dtype))
    dims = axes(dim, x.ndim)
    real = real_dtype(x.dtype)
    count = math.prod(x.shape[d] for d in dims)
    average = jnp.sum(x, axis=dims, keepdims=True) / cast(count, real)
    deviation = x - average
    squares = jnp.real(deviation * jnp.conj(deviation)) if is_complex(x.dtype) else deviation * deviation
    degrees = jnp.maximum(cast(count, real) - cast(1 if correction is None else correction, real), 0)
    variance = jnp.sum(squares, axis=dims, keepdims=keepdim) / degrees
    return variance, average if keepdim else jnp.squeeze(average, dims)


def var(out, x, dim=None, *, correction=None, keepdim=False):
    return cast(_moments(x, dim, correction, keepdim)[0], out.dtype)


def std(out, x, dim=None, *, correction=None, keepdim=False):
    return cast(jnp.sqrt(_moments(x, dim, correction, keepdim)[0]), out.dtype)


def var_mean(outs, x, dim=None, *, correction=None, keepdim=False):
    variance, average = _moments(x, dim, correction, keepdim)
    return cast(variance, outs[0].dtype), cast(average, outs[1].dtype)


def std_mean(outs, x, dim=None, *, correction=None, keepdim=False):
    variance, average = _moments(x, dim, correction, keepdim)
    return cast(jnp.sqrt(variance), outs[0].dtype), cast(average, outs[1].dtype)


def extremum(function):
    def lowered(out, x, dim=None, keepdim=False):
        return function(x, axis=axes(dim, x.ndim), keepdims=keepdim)

    return lowered


def aminmax(outs, x, *, dim=None, keepdim=False):
    dims = axes(dim, x.ndim)
    return jnp.min(x, axis=dims, keepdims=keepdim), jnp.max(x, axis=dims, keepdims=keepdim)


def _extremum_and_position(function, x, dim):
    """Along a dimension, or of all elements for ``None``; the first of equal ones, and nan before all others, as PyTorch has it.

    Two plain reductions, which XLA:CPU vectorizes: one over pairs, as in ``jnp.argmax``, takes four times as long.
    """
    if dim is None or x.ndim == 0:
        x, dim = x.reshape(-1), 0
    extremum = function(x, axis=dim, keepdims=True)
    hit = x == extremum if is_integral(x.dtype) else (x == extremum) | jnp.isnan(x)
    count = x.shape[dim]
    places = lax.broadcasted_iota(np.int32 if count < 2**31 else np.int64, x.shape, dim % x.ndim)
    return extremum, jnp.min(jnp.where(hit, places, count), axis=dim).astype(np.int64)


def position(function):
    def lowered(out, x, dim=None, keepdim=False):
        return _extremum_and_position(function, x, dim)[1].reshape(out.shape)

    return lowered


def extremum_and_position(function):
    def lowered(outs, x, dim, keepdim=False):
        return tuple(a.reshape(out.shape) for a, out in zip(_extremum_and_position(function, x, dim), outs, strict=True))

    return lowered


def truth(function):
    def lowered(out, x, dim=None, keepdim=False):
        return cast(function(x != 0, axis=axes(dim, x.ndim), keepdims=keepdim), out.dtype)

    return lowered


def all_true(out, x):
    return jnp.all(x)


def any_true(out, x):
    return jnp.any(x)


def count_nonzero(out, x, dim=None):
    return jnp.sum(x != 0, axis=axes(dim, x.ndim), dtype=np.int64)


def vector_norm(out, x, order=2, dim=None, keepdim=False):
    real = opmath(out.dtype)
    # of complex numbers and integers too: the norm is one of sizes
    size = jnp.abs(cast(x, opmath(x.dtype) if is_complex(x.dtype) or is_floating(x.dtype) else real)).astype(real)
    dims = axes(dim, x.ndim)
    if order == 0:
        result = jnp.sum(size != 0, axis=dims, keepdims=keepdim, dtype=real)
    elif order == 1:
        result = jnp.sum(size, axis=dims, keepdims=keepdim)
    elif order == 2:
        result = jnp.sqrt(jnp.sum(size * size, axis=dims, keepdims=keepdim))
    elif order == math.inf:
        result = jnp.max(size, axis=dims, keepdims=keepdim, initial=0)
    elif order == -math.inf:
        result = jnp.min(size, axis=dims, keepdims=keepdim, initial=jnp.inf)
    else:
        powers = jnp.sum(jnp.power(size, cast(order, real)), axis=dims, keepdims=keepdim)
        result = jnp.power(powers, cast(1 / order, real))
    return cast(result, out.dtype)


def norm(out, x, p=2, dim=None, keepdim=False):
    return vector_norm(out, x, 2 if p is None else p, dim, keepdim)


def dist(out, x, y, p=2):
    return vector_norm(out, x - y, p)


def logsumexp(out, x, dim, keepdim=False):
    x = cast(x, opmath(out.dtype))
    dims = axes(dim, x.ndim)
    # without the shift where it is infinite: inf - inf would be nan
    top = jnp.max(jnp.real(x), axis=dims, keepdims=True, initial=-jnp.inf)
    top = jnp.where(jnp.isinf(top), jnp.zeros_like(top), top)
    result = jnp.log(jnp.sum(jnp.exp(x - top), axis=dims, keepdims=True)) + top
    return cast(result if keepdim else jnp.squeeze(result, dims), out.dtype)


def trace(out, x):
    return total(out, jnp.diagonal(x))


_FUNCTIONS = {
    "sum.default": total, "sum.dim_IntList": total, "nansum.default": nansum,
    "mean.default": mean, "mean.dim": mean,
    "prod.default": prod, "prod.dim_int": prod,
    "var.correction": var, "std.correction": std, "var_mean.correction": var_mean, "std_mean.correction": std_mean,
    "amax.default": extremum(jnp.max), "amin.default": extremum(jnp.min), "aminmax.default": aminmax,
    "max.default": extremum(jnp.max), "min.default": extremum(jnp.min),
    "max.dim": extremum_and_position(jnp.max), "min.dim": extremum_and_position(jnp.min),
    "argmax.default": position(jnp.max), "argmin.default": position(jnp.min),
    "any.default": truth(jnp.any), "any.dim": truth(jnp.any), "any.dims": truth(jnp.any),
    "all.default": truth(jnp.all), "all.dim": truth(jnp.all), "all.dims": truth(jnp.all),
    "_is_all_true.default": all_true, "_is_any_true.default": any_true,
    "count_nonzero.default": count_nonzero, "count_nonzero.dim_IntList": count_nonzero,
    "logsumexp.default": logsumexp, "trace.default": trace,
}  # fmt: skip
TABLE = {
    **{name: lowering(function) for name, function in _FUNCTIONS.items()},
    "linalg_vector_norm.default": lowering(vector_norm, constants=("ord",)),
    "norm.Scalar": lowering(norm, constants=("p",)),
    "norm.ScalarOpt_dim": lowering(norm, constants=("p",)),
    "norm.ScalarOpt_dtype": lowering(norm, constants=("p",)),
    "norm.ScalarOpt_dim_dtype": lowering(norm, constants=("p",)),
    "dist.default": lowering(dist, constants=("p",)),
}
