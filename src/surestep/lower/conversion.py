"""Copies, casts and choices between values."""

from __future__ import annotations

import jax.numpy as jnp

from surestep.lower.numeric import cast
from surestep.lower.spec import lowering


def copy_cast(out, x):
    return cast(x, out.dtype)


def copy(out, x, source):
    return jnp.broadcast_to(cast(source, out.dtype), out.shape)


def where(out, condition, x, y):
    return jnp.where(condition != 0, cast(x, out.dtype), cast(y, out.dtype))


def masked_fill(out, x, mask, value):
    return jnp.where(mask, cast(value, out.dtype), cast(x, out.dtype))


TABLE = {
    "_to_copy.default": lowering(copy_cast),
    "clone.default": lowering(copy_cast),
    "copy.default": lowering(copy),
    "where.self": lowering(where),
    "masked_fill.Scalar": lowering(masked_fill),
    "masked_fill.Tensor": lowering(masked_fill),
}
