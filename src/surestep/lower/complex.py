"""Copies of the views between complex numbers and pairs of real ones."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from surestep.lower.spec import lowering


def view_as_real_copy(out, x):
    return jnp.stack([x.real, x.imag], -1)


def view_as_complex_copy(out, x):
    return lax.complex(x[..., 0], x[..., 1])


def conj_copy(out, x):
    return jnp.conj(x)


def neg_view_copy(out, x):
    return -x


TABLE = {
    "view_as_real_copy.default": lowering(view_as_real_copy),
    "view_as_complex_copy.default": lowering(view_as_complex_copy),
    "_conj_copy.default": lowering(conj_copy),
    "conj_physical.default": lowering(conj_copy),  # what `conj_physical_` and `out=` are; else PyTorch has `_conj_physical`
    "_neg_view_copy.default": lowering(neg_view_copy),
}
