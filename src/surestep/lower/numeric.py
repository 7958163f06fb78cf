"""What the elementwise families share: casts as PyTorch makes them, and the dtype that PyTorch computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax

from surestep.lower.shared import opmath

NUMBERS = (bool, int, float, complex)

_SATURATING = np.dtype(ml_dtypes.float8_e4m3fn)  # it has no infinity
_LARGEST = float(ml_dtypes.finfo(_SATURATING).max)


def is_complex(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def is_floating(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def is_integral(dtype: np.dtype) -> bool:
    """Integers and bool."""
    return not jnp.issubdtype(dtype, jnp.inexact)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part."""
    return np.dtype(np.finfo(dtype).dtype) if is_complex(dtype) else np.dtype(dtype)


def cast(value: Any, dtype: np.dtype) -> Any:
    """A tensor or a number in ``dtype``; integers wrap around, complex numbers lose their imaginary part, as in C."""
    if isinstance(value, NUMBERS):
        with np.errstate(all="ignore"):
            if isinstance(value, complex) and not is_complex(dtype):
                value = value.real
            return np.asarray(value).astype(dtype)[()]
    if value.dtype == dtype:
        return value
    if is_complex(value.dtype) and not is_complex(dtype):
        return lax.ne(value, lax.full_like(value, 0)) if dtype == np.bool_ else cast(lax.real(value), dtype)
    if is_floating(value.dtype) and jnp.issubdtype(dtype, jnp.integer):
        return _truncate(value, np.dtype(dtype))
    if dtype == _SATURATING:  # as PyTorch does it
        value = jnp.clip(value if is_floating(value.dtype) else value.astype(np.float32), -_LARGEST, _LARGEST)
    return value.astype(dtype)


def _truncate(value: Array, dtype: np.dtype) -> Array:
    """Float to integer as x86 does it: what doesn't fit becomes the most negative number, and a narrow dtype keeps its low bits."""
    wide = np.dtype(np.int32 if dtype in (np.int8, np.int16, np.int32) else np.int64)
    value = value.astype(np.float64 if value.dtype == np.float64 else np.float32)
    limit = np.asarray(2.0 ** (wide.itemsize * 8 - 1), value.dtype)[()]
    fits = (value >= -limit) & (value < limit)
    whole = jnp.where(fits, value, -limit).astype(wide)
    return whole.astype(dtype)


def stand_in(value: Any) -> Any:
    """A ``Scalar`` argument as something that promotes like the Python number it is, also when it is an input of the program."""
    return value if isinstance(value, NUMBERS) else {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}[value.dtype.kind]


def unary(function: Callable[[Any], Any]) -> Callable[..., Array]:
    """A lowering that computes ``function`` in the result's dtype (float32 for the 16-bit floats)."""

    def lowered(out, x):
        return cast(function(cast(x, opmath(out.dtype))), out.dtype)

    return lowered


def binary(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """The same for two operands, tensors or numbers."""

    def lowered(out, x, y):
        dtype = opmath(out.dtype)
        return cast(function(cast(x, dtype), cast(y, dtype)), out.dtype)

    return lowered


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """PyTorch's ``dim`` as sorted axes: ``None`` and ``[]`` are all of them, and a 0-d tensor counts as having one."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(sorted({d % ndim for d in dims})) if ndim else ()
