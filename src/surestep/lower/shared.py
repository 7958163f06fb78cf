"""What several families of lowerings need: opmath dtypes, lists of ints, linear transposes, taps of windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def opmath(dtype: np.dtype) -> np.dtype:
    """The dtype PyTorch calculates in: float32 for the half precisions, else the dtype itself."""
    return np.dtype(np.float32) if np.dtype(dtype) in _HALVES else np.dtype(dtype)


def widened(x: Any) -> Any:
    """``x`` in its opmath dtype; ``None`` stays ``None``."""
    return None if x is None else x.astype(opmath(x.dtype))


def ints(values: Any, count: int) -> tuple[int, ...]:
    """An ``int[count]`` argument: PyTorch also takes one int, or a list of one, for all."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * count if len(values) == 1 else values


def axis_of(dim: int, ndim: int) -> int:
    """A dimension counted from the front; a 0-d tensor counts as 1-d."""
    return dim % max(ndim, 1)


def from_front(index: Any, size: int) -> Any:
    """An index that isn't counted from the end: below 0 it is as much out of range as behind the last, where JAX drops and fills."""
    return jnp.where(index < 0, size, index)


def transposed(function: Callable[[Any], Any], like: Any, dtype: np.dtype) -> Callable[[Any], Any]:
    """The transpose of a linear function of one array of shape ``like``: what its backward is."""
    transpose = jax.linear_transpose(function, jax.ShapeDtypeStruct(tuple(like), dtype))
    return lambda cotangent: transpose(cotangent)[0]


def strided(x: Any, axis: int, start: int, count: int, stride: int) -> Any:
    """``count`` elements along ``axis`` from ``start`` on, ``stride`` apart."""
    stop = start + (count - 1) * stride + 1 if count else start
    return lax.slice_in_dim(x, start, stop, stride, axis)


def along(values: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """A vector that broadcasts along ``axis`` of an array of ``ndim`` dimensions."""
    return values.reshape([-1 if d == axis else 1 for d in range(ndim)])


def low(dtype: np.dtype) -> Any:
    """The value below all others: what a maximum starts from."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, np.floating):
        return np.array(-np.inf, dtype)
    return np.array(False) if dtype == np.bool_ else np.array(np.iinfo(dtype).min, dtype)


def high(dtype: np.dtype) -> Any:
    """The value above all others: what a minimum starts from."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, np.floating):
        return np.array(np.inf, dtype)
    return np.array(True) if dtype == np.bool_ else np.array(np.iinfo(dtype).max, dtype)
