"""Rows looked up in a table of vectors, and the gradient of the table."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from surestep.lower.shared import from_front, opmath
from surestep.lower.spec import lowering, number


def embedding(out, weight, indices, _padding_idx=-1, _scale_grad_by_freq=False, _sparse=False):
    return jnp.take(weight, from_front(indices, weight.shape[0]), axis=0, mode="fill")


def embedding_dense_backward(out, grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    """Rows of ``grad`` added up by index; the padding's row is written past the end, where writes are dropped."""
    flat = from_front(indices.reshape(-1), num_weights)
    target = jnp.where(flat == padding_idx, num_weights, flat) if padding_idx >= 0 else flat
    rows = grad.reshape(flat.shape[0], grad.shape[-1]).astype(opmath(grad.dtype))
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), np.int64).at[target].add(1, mode="drop")
        rows = rows / counts[target][:, None].astype(rows.dtype)
    return jnp.zeros(out.shape, rows.dtype).at[target].add(rows, mode="drop").astype(out.dtype)


def embedding_renorm(out, weight, indices, max_norm, norm_type):
    """The looked-up rows whose norm is above ``max_norm``, scaled down to it."""
    wide = weight.astype(opmath(weight.dtype))
    used = jnp.zeros((weight.shape[0],), np.bool_).at[from_front(indices.reshape(-1), weight.shape[0])].set(True, mode="drop")
    norm = jnp.linalg.norm(wide, ord=norm_type, axis=1)
    limit = number(max_norm, wide.dtype)
    scale = jnp.where(used & (norm > limit), limit / (norm + number(1e-7, wide.dtype)), jnp.ones_like(norm))
    return (wide * scale[:, None]).astype(out.dtype)


TABLE = {
    "embedding.default": lowering(embedding),
    "embedding_dense_backward.default": lowering(embedding_dense_backward),
    "embedding_renorm.default": lowering(embedding_renorm, constants=("norm_type",)),
}
