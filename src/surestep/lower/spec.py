"""What a lowering is given and what it must give back.

A lowering is a plain function over JAX arrays:

    def add(out, x, y, *, alpha=1): ...

* ``out`` says what PyTorch's own inference expects: an :class:`Out` (shape, dtype), or a tuple of them (``None`` where
  PyTorch gives no tensor) for an operation with several results. The result is checked against it when a program is
  lowered, so a wrong shape or dtype is an error that names the operation, never a wrong number.
* The other arguments are those of the ATen schema, in its order and with its defaults: tensors are JAX arrays of the exact
  dtype and the logical shape, lists are Python lists, ``None`` stays ``None``. The factory arguments (``dtype``, ``layout``,
  ``device``, ``pin_memory``, ``memory_format``, ``non_blocking``, ``generator``) are left out: ``out`` says it all.
* An argument that the schema calls ``Scalar`` or ``float`` is a Python number, or, once it has been seen to change from step to
  step, a 0-d array that is an input of the program. So a lowering never branches on one, unless its table entry
  names it in ``constants``. ``number`` turns both into an array of a dtype.
* A random operation's entry says ``random=True``: it gets a JAX key as the keyword argument ``key``.
* ``int``, ``bool``, ``str`` and lists of them are always Python constants.

In-place and ``out=`` operations have no lowerings of their own: they are the functional operation and a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch

from surestep.execute import dtypes
from surestep.lower.numeric import cast


class Out(NamedTuple):
    """The shape and dtype that PyTorch says a result has."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Lowering(NamedTuple):
    """One entry of a family's table."""

    function: Callable[..., Any]
    constants: frozenset[str] = frozenset()  # Scalar and float arguments that must stay Python numbers
    random: bool = False
    custom: bool = False  # it says itself what shapes it gives, unless a fake kernel does; and what it raises is the user's to see


def lowering(function: Callable[..., Any], *, constants: Iterable[str] = (), random: bool = False) -> Lowering:
    return Lowering(function, frozenset(constants), random)


def number(value: Any, dtype: np.dtype) -> Any:
    """A Python number or a 0-d array as a 0-d array of ``dtype``; what it can't hold wraps around, as in C."""
    return jnp.asarray(cast(value, dtype))


def promoted(*values: Any) -> np.dtype:
    """PyTorch's promoted dtype of arrays and Python numbers (``torch.result_type``: 0-d arrays and numbers give way)."""
    stand_ins = [
        value
        if isinstance(value, (bool, int, float, complex))
        else torch.empty((0,) * min(value.ndim, 1), dtype=dtypes.to_torch(value.dtype), device="meta")
        for value in values
    ]
    result = stand_ins[0]
    for other in stand_ins[1:]:
        dtype = torch.result_type(result, other)
        ndim = max(getattr(result, "ndim", 0), getattr(other, "ndim", 0))
        result = torch.empty((0,) * ndim, dtype=dtype, device="meta")
    return dtypes.to_jax(result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result))
