"""Arithmetic, comparisons, logic and bits, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import NUMBERS, binary, cast, is_complex, is_floating, is_integral, real_dtype, stand_in, unary
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering, promoted


def add(out, x, y, *, alpha=1):
    dtype = opmath(out.dtype)
    x, y = cast(x, dtype), cast(y, dtype)
    if dtype == np.bool_:
        return jnp.logical_or(x, jnp.logical_and(y, cast(alpha, dtype)))
    scaled = y if isinstance(alpha, NUMBERS) and alpha == 1 else y * cast(alpha, dtype)
    return cast(x + scaled, out.dtype)


def add_scalar(out, x, y, alpha=1):
    return add(out, x, y, alpha=alpha)


def sub(out, x, y, *, alpha=1):
    dtype = opmath(out.dtype)
    x, y = cast(x, dtype), cast(y, dtype)
    scaled = y if isinstance(alpha, NUMBERS) and alpha == 1 else y * cast(alpha, dtype)
    return cast(x - scaled, out.dtype)


def sub_scalar(out, x, y, alpha=1):
    return sub(out, x, y, alpha=alpha)


def rsub(out, x, y, *, alpha=1):
    return sub(out, y, x, alpha=alpha)


def rsub_scalar(out, x, y, alpha=1):
    return sub(out, y, x, alpha=alpha)


def _multiply(x, y):
    return jnp.logical_and(x, y) if x.dtype == np.bool_ else jnp.multiply(x, y)


def _floor_divide(x, y):
    if is_integral(x.dtype):
        return jnp.floor_divide(x, y)
    # Python's floor division, which is exact where floor(x / y) isn't; the zero of a quotient keeps its sign.
    remainder = jnp.fmod(x, y)
    quotient = (x - remainder) / y
    quotient = jnp.where((remainder != 0) & ((y < 0) != (remainder < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(floor), x / y), floor)
    return jnp.where(y == 0, x / y, floor)


def _trunc_divide(x, y):
    if is_integral(x.dtype):
        return lax.div(*jnp.broadcast_arrays(x, y))
    # XLA may divide by a broadcast operand as a product with its reciprocal, which makes 1 - eps of x / x.
    quotient = x / y
    return jnp.where(jnp.fmod(x, y) == 0, jnp.round(quotient), jnp.trunc(quotient))


_DIVISIONS = {None: binary(jnp.true_divide), "floor": binary(_floor_divide), "trunc": binary(_trunc_divide)}


def div_mode(out, x, y, *, rounding_mode):
    return _DIVISIONS[rounding_mode](out, x, y)


def _integer_power(x, y):
    """Square and multiply until no exponent has a bit left; as in C, the result wraps around."""
    x, y = jnp.broadcast_arrays(x, y)
    one = jnp.ones_like(x)

    def step(state):
        power, base, exponent = state
        return jnp.where(exponent & 1 == 1, power * base, power), base * base, exponent >> 1

    power, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, (one, x, jnp.maximum(y, 0)))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return power
    of_minus_one = jnp.where(y & 1 == 1, -one, one)
    negative = jnp.where(x == 1, one, jnp.where(x == -1, of_minus_one, 0))
    return jnp.where(y < 0, negative, power)


def _power(x, y):
    if is_complex(x.dtype):  # exp(y * log(x)) turns by the error of a large angle: complex64 isn't enough
        wide = np.dtype(np.complex128)
        return jnp.power(cast(x, wide), cast(y, wide))
    return _integer_power(x, y) if is_integral(x.dtype) else jnp.power(x, y)


_FIXED_POWERS: dict[complex, Callable[[Any], Any]] = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
}
_FIXED_FLOAT_POWERS: dict[complex, Callable[[Any], Any]] = {
    0.5: jnp.sqrt,
    -0.5: lambda x: 1 / jnp.sqrt(x),
    -1: jnp.reciprocal,
    -2: lambda x: 1 / (x * x),
}


def pow_scalar(out, x, exponent):
    """With PyTorch's own short cuts for the exponents that it has them for."""
    special = None
    if isinstance(exponent, NUMBERS):
        special = _FIXED_POWERS.get(exponent)
        if is_floating(out.dtype):
            special = special or _FIXED_FLOAT_POWERS.get(exponent)
    return unary(special)(out, x) if special else binary(_power)(out, x, exponent)


def comparison(function):
    def lowered(out, x, y):
        dtype = promoted(x, y)
        return function(cast(x, dtype), cast(y, dtype))

    return lowered


def scalar_comparison(function):
    def lowered(out, x, y):
        dtype = promoted(x, stand_in(y))
        return function(cast(x, dtype), cast(y, dtype))

    return lowered


def logical(function):
    def lowered(out, *operands):
        return function(*(cast(x, np.dtype(np.bool_)) for x in operands))

    return lowered


def _left_shift(x, y):
    bits = x.dtype.itemsize * 8
    fits = (y >= 0) & (y < bits)
    return jnp.where(fits, jnp.left_shift(x, jnp.where(fits, y, 0)), 0)


def _right_shift(x, y):
    last = x.dtype.itemsize * 8 - 1
    shifted = jnp.right_shift(x, jnp.where((y >= 0) & (y < last), y, last))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):  # no sign bit to repeat: all bits go
        return jnp.where((y >= 0) & (y <= last), shifted, 0)
    return shifted


def _sign(x):
    return x if x.dtype == np.bool_ else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)  # nan has sign 0


def _sgn(x):
    if not is_complex(x.dtype):
        return _sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, jnp.zeros_like(x), x / size)


def absolute(out, x):
    return cast(jnp.abs(x), out.dtype)


def angle(out, x):
    if is_complex(x.dtype):
        return cast(jnp.arctan2(jnp.imag(x), jnp.real(x)), out.dtype)
    x = cast(x, opmath(out.dtype))
    return cast(jnp.where(jnp.isnan(x), x, jnp.where(x < 0, cast(np.pi, x.dtype), cast(0, x.dtype))), out.dtype)


def _heaviside(x, values):
    return jnp.where(x == 0, values, (x > 0).astype(x.dtype))


def addcmul(out, x, y, z, *, value=1):
    dtype = opmath(out.dtype)
    return cast(cast(x, dtype) + cast(value, dtype) * cast(y, dtype) * cast(z, dtype), out.dtype)


def addcdiv(out, x, y, z, *, value=1):
    dtype = opmath(out.dtype)
    return cast(cast(x, dtype) + cast(value, dtype) * cast(y, dtype) / cast(z, dtype), out.dtype)


def lerp(out, start, end, weight):
    dtype = opmath(out.dtype)
    start, end, weight = cast(start, dtype), cast(end, dtype), cast(weight, dtype)
    difference = end - start
    near = jnp.abs(weight) < 0.5 if is_complex(dtype) else weight < 0.5
    # from the nearer end, so that weight 1 gives the end exactly
    return cast(jnp.where(near, start + weight * difference, end - difference * (1 - weight)), out.dtype)


def clamp(out, x, low=None, high=None):
    x = cast(x, out.dtype)
    if low is not None:
        x = jnp.maximum(x, cast(low, out.dtype))
    return x if high is None else jnp.minimum(x, cast(high, out.dtype))


def clamp_max(out, x, high):
    return clamp(out, x, None, high)


def nan_to_num(out, x, nan=None, posinf=None, neginf=None):
    if is_integral(out.dtype):
        return x
    if is_complex(out.dtype):
        real = out._replace(dtype=real_dtype(out.dtype))
        return lax.complex(nan_to_num(real, jnp.real(x), nan, posinf, neginf), nan_to_num(real, jnp.imag(x), nan, posinf, neginf))
    limits = jnp.finfo(out.dtype)
    x = jnp.where(jnp.isnan(x), cast(0.0 if nan is None else nan, out.dtype), x)
    x = jnp.where(x == jnp.inf, limits.max if posinf is None else cast(posinf, out.dtype), x)
    return jnp.where(x == -jnp.inf, limits.min if neginf is None else cast(neginf, out.dtype), x)


def _per_kind(floating, integral):
    """A test for a kind of float, which no integer is: ``integral`` answers for those."""

    def lowered(out, x):
        return jnp.full(x.shape, integral) if is_integral(x.dtype) else floating(x)

    return lowered


def signbit(out, x):
    return x < 0 if is_integral(x.dtype) and x.dtype != np.bool_ else _per_kind(jnp.signbit, False)(out, x)


def _arithmetic():
    table = {
        "add.Tensor": add, "add.Scalar": add_scalar,
        "sub.Tensor": sub, "sub.Scalar": sub_scalar,
        "rsub.Tensor": rsub, "rsub.Scalar": rsub_scalar,
        "mul.Tensor": binary(_multiply), "mul.Scalar": binary(_multiply),
        "div.Tensor": _DIVISIONS[None], "div.Scalar": _DIVISIONS[None],
        "div.Tensor_mode": div_mode, "div.Scalar_mode": div_mode,
        "floor_divide.default": _DIVISIONS["floor"], "floor_divide.Scalar": _DIVISIONS["floor"],
        "pow.Tensor_Tensor": binary(_power), "pow.Tensor_Scalar": pow_scalar, "pow.Scalar": binary(_power),
        "neg.default": unary(jnp.negative), "abs.default": absolute, "angle.default": angle,
        "sign.default": unary(_sign), "sgn.default": unary(_sgn),
        "reciprocal.default": unary(lambda x: 1 / x),
        "_conj_physical.default": unary(jnp.conj),
        "addcmul.default": addcmul, "addcdiv.default": addcdiv,
        "lerp.Scalar": lerp, "lerp.Tensor": lerp,
        "clamp.default": clamp, "clamp.Tensor": clamp,
        "clamp_min.default": clamp, "clamp_min.Tensor": clamp, "clamp_max.default": clamp_max, "clamp_max.Tensor": clamp_max,
        "nan_to_num.default": nan_to_num,
        "isnan.default": _per_kind(jnp.isnan, False), "isinf.default": _per_kind(jnp.isinf, False),
        "isposinf.default": _per_kind(jnp.isposinf, False), "isneginf.default": _per_kind(jnp.isneginf, False),
        "signbit.default": signbit,
    }  # fmt: skip
    both = {
        "maximum": jnp.maximum, "minimum": jnp.minimum, "fmax": jnp.fmax, "fmin": jnp.fmin,
        "gcd": jnp.gcd, "lcm": jnp.lcm, "heaviside": _heaviside,
    }  # fmt: skip
    table |= {f"{name}.default": binary(function) for name, function in both.items()}
    for name, function in {"remainder": jnp.remainder, "fmod": jnp.fmod, "copysign": jnp.copysign}.items():
        table |= {f"{name}.Tensor": binary(function), f"{name}.Scalar": binary(function)}
    table["remainder.Scalar_Tensor"] = binary(jnp.remainder)
    # not in float32 for the 16-bit floats: the next number is one of the dtype's own
    table["nextafter.default"] = lambda out, x, y: jnp.nextafter(cast(x, out.dtype), cast(y, out.dtype))
    return table


def _comparisons():
    functions = {
        "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal,
    }  # fmt: skip
    table = {f"{name}.Tensor": comparison(function) for name, function in functions.items()}
    return table | {f"{name}.Scalar": scalar_comparison(function) for name, function in functions.items()}


def _bits():
    table = {"bitwise_not.default": unary(jnp.invert)}
    for name in ("and", "or", "xor"):
        table[f"logical_{name}.default"] = logical(getattr(jnp, f"logical_{name}"))
        for overload in ("Tensor", "Scalar", "Scalar_Tensor"):
            table[f"bitwise_{name}.{overload}"] = binary(getattr(jnp, f"bitwise_{name}"))
    table["logical_not.default"] = logical(jnp.logical_not)
    for name, function in {"left": _left_shift, "right": _right_shift}.items():
        for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
            table[f"bitwise_{name}_shift.{overload}"] = binary(function)
        for overload in ("Tensor", "Scalar"):
            table[f"__{name[0]}shift__.{overload}"] = binary(function)
    return table


TABLE = {name: lowering(function) for name, function in (_arithmetic() | _comparisons() | _bits()).items()}
