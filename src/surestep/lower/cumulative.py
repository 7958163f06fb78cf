"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.elementary import logaddexp
from surestep.lower.numeric import cast, is_complex, is_integral
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def running(function):
    def lowered(out, x, dim):
        x = cast(x, opmath(out.dtype))
        return cast(function(x, axis=dim % x.ndim) if x.ndim else x, out.dtype)

    return lowered


def running_extremum(function):
    """The values and where each was last met."""

    def lowered(outs, x, dim):
        if x.ndim == 0:
            return x, jnp.zeros((), np.int64)
        axis = dim % x.ndim
        # XLA has no running extremum of bool
        values = cast(function(cast(x, np.dtype(np.uint8)) if x.dtype == np.bool_ else x, axis=axis), outs[0].dtype)
        met = x == values if is_integral(x.dtype) else (x == values) | jnp.isnan(x)
        places = jnp.where(met, lax.broadcasted_iota(np.int64, x.shape, axis), 0)
        return values, lax.cummax(places, axis=axis)

    return lowered


def _log_cumulative_sum(x, axis):
    return lax.associative_scan(logaddexp, x, axis=axis) if is_complex(x.dtype) else lax.cumlogsumexp(x, axis=axis)


TABLE = {
    "cumsum.default": lowering(running(lax.cumsum)),
    "cumprod.default": lowering(running(lax.cumprod)),
    "logcumsumexp.default": lowering(running(_log_cumulative_sum)),
    "_logcumsumexp.default": lowering(running(_log_cumulative_sum)),
    "cummax.default": lowering(running_extremum(lax.cummax)),
    "cummin.default": lowering(running_extremum(lax.cummin)),
}
