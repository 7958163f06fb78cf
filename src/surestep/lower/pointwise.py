"""Element by element: arithmetic, comparisons, elementary functions."""

from __future__ import annotations

import jax.numpy as jnp

from surestep.lower.spec import lowering, number, promoted


def add(out, x, y, *, alpha=1):
    return number(x, out.dtype) + number(y, out.dtype) * number(alpha, out.dtype)


def comparison(function):
    def compare(out, x, y):
        dtype = promoted(x, y)
        return function(number(x, dtype), number(y, dtype))

    return compare


TABLE = {
    "add.Tensor": lowering(add),
    "add.Scalar": lowering(add),
    "lt.Tensor": lowering(comparison(jnp.less)),
}
