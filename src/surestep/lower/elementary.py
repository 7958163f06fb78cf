"""Elementary and special functions of one or two tensors."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax import lax

from surestep.lower.numeric import binary, cast, is_complex, is_integral, unary
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def rounding(function):
    """An integer is already rounded."""

    def lowered(out, x):
        return x if is_integral(out.dtype) else unary(function)(out, x)

    return lowered


def round_decimals(out, x, *, decimals):
    if is_integral(out.dtype):
        return x
    scale = cast(10.0 ** abs(decimals), opmath(out.dtype))
    if decimals == 0:
        return unary(jnp.round)(out, x)
    if decimals > 0:
        return unary(lambda x: jnp.round(x * scale) / scale)(out, x)
    return unary(lambda x: jnp.round(x / scale) * scale)(out, x)


def _rsqrt(x):
    return 1 / jnp.sqrt(x) if is_complex(x.dtype) else lax.rsqrt(x)


def _exp2(x):
    """As a power: XLA's own exp2 multiplies by log(2) first, which costs digits of large exponents."""
    return jnp.exp2(x) if is_complex(x.dtype) else jnp.power(cast(2, x.dtype), x)


def _log_base(base):
    def log(x):
        return jnp.log(x) / cast(np.log(base), x.dtype)

    return log


def _sinc(x):
    angle = x * cast(np.pi, x.dtype)
    return jnp.where(x == 0, jnp.ones_like(x), jnp.sin(angle) / angle)


def logaddexp(x, y):
    """Of complex numbers without wrapping the angle: the larger one's is kept, as PyTorch does it."""
    if not is_complex(x.dtype):
        return jnp.logaddexp(x, y)
    swap = jnp.real(x) < jnp.real(y)
    low, high = jnp.where(swap, x, y), jnp.where(swap, y, x)
    ratio = jnp.exp(low - high)
    real, imaginary = jnp.real(ratio), jnp.imag(ratio)
    growth = lax.complex(jnp.log1p((2 + real) * real + imaginary * imaginary) / 2, jnp.arctan2(imaginary, 1 + real))
    alike_infinite = (jnp.real(x) == jnp.real(y)) & jnp.isinf(jnp.real(x))
    return jnp.where(alike_infinite, jnp.where(jnp.real(x) < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high))), high + growth)


def logit(out, x, eps=None):
    dtype = opmath(out.dtype)
    x = cast(x, dtype)
    if eps is not None:
        eps = cast(eps, dtype)
        x = jnp.clip(x, eps, 1 - eps)
    return cast(jnp.log(x / (1 - x)), out.dtype)


def logit_backward(out, grad, x, eps=None):
    dtype = opmath(out.dtype)
    grad, x = cast(grad, dtype), cast(x, dtype)
    low = cast(0 if eps is None else eps, dtype)
    outside = cast(np.nan if eps is None else 0, dtype)
    return cast(jnp.where((x < low) | (x > 1 - low), outside, grad / (x * (1 - x))), out.dtype)


def _digamma(x):
    return jnp.where(x == 0, jnp.copysign(jnp.full_like(x, jnp.inf), -x), lax.digamma(x))


def _zeta(order, x):
    """Hurwitz's zeta function, whose terms left of zero JAX's series leaves out: they are added one by one."""

    def step(state):
        terms, x = state
        left = x < 0
        return jnp.where(left, terms + jnp.power(x, -order), terms), jnp.where(left, x + 1, x)

    order, x = jnp.broadcast_arrays(order, x)
    pole = (x <= 0) & (x == jnp.floor(x))
    defined = (x > 0) | (order == jnp.floor(order))
    usable = defined & ~pole & jnp.isfinite(x)
    terms, right = lax.while_loop(lambda state: jnp.any(state[1] < 0), step, (jnp.zeros_like(x), jnp.where(usable, x, 1)))
    result = terms + special.zeta(order, jnp.where(usable, right, x))
    result = jnp.where(pole, jnp.inf, jnp.where(defined, result, jnp.nan))
    return jnp.where(order > 1, result, jnp.where(order == 1, jnp.inf, jnp.nan))


def _trigamma(x, dtype):
    """By reflection left of 1/2, where the series of the zeta function doesn't hold; at a pole, pi's digits in ``dtype`` are the result."""
    left = x < 0.5
    there = special.zeta(cast(2, x.dtype), jnp.where(left, 1 - x, x))
    sine = jnp.sin(cast(cast(x, dtype) * cast(np.pi, dtype), x.dtype))
    return jnp.where(left, cast(np.pi**2, x.dtype) / (sine * sine) - there, there)


def polygamma(out, n, x):
    if n == 0:
        return unary(_digamma)(out, x)
    x = cast(x, np.dtype(np.float64))  # large factors and steep powers: float32 would lose digits in each
    if n == 1:
        return cast(_trigamma(x, opmath(out.dtype)), out.dtype)
    order = cast(n + 1, x.dtype)
    return cast((1 if n % 2 else -1) * jnp.exp(lax.lgamma(order)) * _zeta(order, x), out.dtype)


def zeta(out, order, x):
    return cast(_zeta(cast(order, np.dtype(np.float64)), cast(x, np.dtype(np.float64))), out.dtype)


def mvlgamma(out, x, p):
    def function(x):
        terms = sum(lax.lgamma(x - cast(i / 2, x.dtype)) for i in range(p))
        return terms + cast(p * (p - 1) / 4 * np.log(np.pi), x.dtype)

    return unary(function)(out, x)


def _xlogy(x, y):
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, jnp.zeros_like(x), x * jnp.log(y)))


def _xlog1py(x, y):
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, jnp.zeros_like(x), x * jnp.log1p(y)))


def _entr(x):
    return jnp.where(x > 0, -x * jnp.log(x), jnp.where(x == 0, jnp.zeros_like(x), jnp.where(jnp.isnan(x), x, -jnp.inf)))


def frexp(outs, x):
    mantissa, exponent = jnp.frexp(cast(x, opmath(outs[0].dtype)))
    return cast(mantissa, outs[0].dtype), cast(exponent, outs[1].dtype)


def complex_(out, real, imaginary):
    return lax.complex(*jnp.broadcast_arrays(real, imaginary))


def polar(out, size, angle):
    return lax.complex(*jnp.broadcast_arrays(size * jnp.cos(angle), size * jnp.sin(angle)))


def atan2(y, x):
    """At the origin XLA:CPU's quotient of two zeros may come through as nan where it fuses; what counts there is the signs alone."""
    origin = (y == 0) & (x == 0)
    angle = jnp.arctan2(y, jnp.where(origin, jnp.ones_like(x), x))
    return jnp.where(origin & jnp.signbit(x), jnp.copysign(jnp.asarray(np.pi, y.dtype), y), angle)


_UNARY = {
    "sqrt": jnp.sqrt, "rsqrt": _rsqrt,
    "exp": jnp.exp, "exp2": _exp2, "expm1": jnp.expm1,
    "log": jnp.log, "log2": _log_base(2), "log10": _log_base(10), "log1p": jnp.log1p,
    "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan,
    "sinh": jnp.sinh, "cosh": jnp.cosh, "tanh": jnp.tanh, "asinh": jnp.arcsinh, "acosh": jnp.arccosh, "atanh": jnp.arctanh,
    "sigmoid": lax.logistic, "sinc": _sinc,
    "deg2rad": lambda x: x * cast(np.pi / 180, x.dtype), "rad2deg": lambda x: x * cast(180 / np.pi, x.dtype),
    "erf": lax.erf, "erfc": lax.erfc, "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma, "digamma": _digamma,
    "i0": special.i0, "special_i0e": special.i0e, "special_i1": special.i1, "special_i1e": special.i1e,
    "special_entr": _entr, "special_ndtri": special.ndtri, "special_log_ndtr": special.log_ndtr,
}  # fmt: skip
_ROUNDING = {"floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "trunc": jnp.trunc}
_BINARY = {
    "atan2": atan2, "hypot": jnp.hypot, "logaddexp": logaddexp, "logaddexp2": jnp.logaddexp2,
    "igamma": special.gammainc, "igammac": special.gammaincc,
}  # fmt: skip
_WITH_NUMBERS = {
    "xlogy": (_xlogy, ("Tensor", "Scalar_Other", "Scalar_Self")),
    "special_xlog1py": (_xlog1py, ("default", "other_scalar", "self_scalar")),
}
_FUNCTIONS = {
    **{f"{name}.default": unary(function) for name, function in _UNARY.items()},
    **{f"{name}.default": rounding(function) for name, function in _ROUNDING.items()},
    **{f"{name}.default": binary(function) for name, function in _BINARY.items()},
    **{f"{name}.{overload}": binary(function) for name, (function, overloads) in _WITH_NUMBERS.items() for overload in overloads},
    "frac.default": unary(lambda x: x - jnp.trunc(x)),
    "round.decimals": round_decimals,
    "logit.default": logit, "logit_backward.default": logit_backward,
    "polygamma.default": polygamma, "mvlgamma.default": mvlgamma,
    "special_zeta.default": zeta, "special_zeta.other_scalar": zeta, "special_zeta.self_scalar": zeta,
    "frexp.Tensor": frexp,
    "complex.default": complex_, "polar.default": polar,
}  # fmt: skip
TABLE = {name: lowering(function) for name, function in _FUNCTIONS.items()}
