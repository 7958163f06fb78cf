"""Discrete Fourier transforms: complex to complex, real to complex, complex to real."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from surestep.lower.shared import axis_of
from surestep.lower.spec import lowering, number

_NONE, _BY_ROOT_N, _BY_N = range(3)


def _normalized(x, sizes, normalization):
    count = math.prod(sizes)
    factor = {_NONE: 1.0, _BY_ROOT_N: 1 / math.sqrt(count), _BY_N: 1 / count}[normalization]
    return x if normalization == _NONE else x * number(factor, x.real.dtype)


def _transformed(x, dims, forward):
    for dim in dims:
        x = jnp.fft.fft(x, axis=dim) if forward else jnp.fft.ifft(x, axis=dim, norm="forward")
    return x


def fft_c2c(out, x, dim, normalization, forward):
    dims = [axis_of(d, x.ndim) for d in dim]
    return _normalized(_transformed(x, dims, forward), [x.shape[d] for d in dims], normalization)


def fft_r2c(out, x, dim, normalization, onesided):
    dims = [axis_of(d, x.ndim) for d in dim]
    first = jnp.fft.rfft(x, axis=dims[-1]) if onesided else jnp.fft.fft(x.astype(np.result_type(x.dtype, np.complex64)), axis=dims[-1])
    return _normalized(_transformed(first, dims[:-1], True), [x.shape[d] for d in dims], normalization)


def fft_c2r(out, x, dim, normalization, last_dim_size):
    dims = [axis_of(d, x.ndim) for d in dim]
    partly = _transformed(x, dims[:-1], False)
    real = jnp.fft.irfft(partly, n=last_dim_size, axis=dims[-1], norm="forward")
    return _normalized(real, [out.shape[d] for d in dims], normalization)


TABLE = {
    "_fft_c2c.default": lowering(fft_c2c),
    "_fft_r2c.default": lowering(fft_r2c),
    "_fft_c2r.default": lowering(fft_c2r),
}
