"""Scaled dot-product attention in one piece, and its gradient."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering, number


def _product(x, y, contract):
    """Batches of matrices (batch, heads, rows, columns) multiplied; the half precisions are summed in float32."""
    dimensions = (contract, ((0, 1), (0, 1)))
    return lax.dot_general(x, y, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=opmath(x.dtype))


def _scaling(query, scale):
    return number(1 / math.sqrt(query.shape[-1]) if scale is None else scale, opmath(query.dtype))


def _scores(query, key, mask, is_causal, scale):
    scores = _product(query, key, ((3,), (3,))) * _scaling(query, scale)
    if is_causal:
        row, column = (lax.broadcasted_iota(np.dtype(np.int32), scores.shape[-2:], d) for d in (0, 1))
        scores = jnp.where(column <= row, scores, -jnp.inf)
    return scores if mask is None else scores + mask.astype(scores.dtype)


def _spread_heads(query, *tensors):
    """Keys and values that several heads of the query share, once for each of them."""
    return [jnp.repeat(t, query.shape[1] // t.shape[1], 1) if t.shape[1] != query.shape[1] else t for t in tensors]


def _no_dropout(dropout_p):
    if dropout_p:
        raise ValueError("fused attention has no dropout here: the composite attention, which PyTorch chooses for this device, has")


def _attention(query, key, value, mask, is_causal, scale):
    """The result and the logarithm of every row's sum; a row that is masked throughout gives zeros."""
    key, value = _spread_heads(query, key, value)
    scores = _scores(query, key, mask, is_causal, scale)
    logsumexp = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.where(jnp.isneginf(logsumexp)[..., None], 0, jnp.exp(scores - logsumexp[..., None]))
    return _product(weights.astype(value.dtype), value, ((3,), (2,))), logsumexp


def flash_attention(out, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    _no_dropout(dropout_p)
    result, logsumexp = _attention(query, key, value, attn_mask, is_causal, scale)
    return result.astype(out[0].dtype), logsumexp.astype(out[1].dtype)


def flash_attention_backward(out, grad, query, key, value, result, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    _no_dropout(dropout_p)
    dtype = opmath(query.dtype)
    shape = key.shape
    query, grad, result = (t.astype(dtype) for t in (query, grad, result))
    key, value = (t.astype(dtype) for t in _spread_heads(query, key, value))
    scores = _scores(query, key, attn_mask, is_causal, scale)
    lse = logsumexp.astype(dtype)[..., None]
    weights = jnp.where(jnp.isneginf(lse), 0, jnp.exp(scores - lse))
    grad_weights = _product(grad, value, ((3,), (3,)))
    grad_scores = weights * (grad_weights - (grad * result).sum(-1, keepdims=True)) * _scaling(query, scale)
    gradients = (
        _product(grad_scores, key, ((3,), (2,))),
        _product(grad_scores, query, ((2,), (2,))),
        _product(weights, grad, ((2,), (2,))),
    )
    return tuple(_gathered_heads(g, e, shape).astype(e.dtype) for g, e in zip(gradients, out, strict=True))


def _gathered_heads(gradient, expected, key_shape):
    """The gradient of shared keys and values: the sum over the heads that share them."""
    if gradient.shape == expected.shape:
        return gradient
    batch, _, length, width = gradient.shape
    return gradient.reshape(batch, key_shape[1], -1, length, width).sum(2)


TABLE = {
    "_scaled_dot_product_flash_attention_for_cpu.default": lowering(flash_attention, constants=("dropout_p",)),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": lowering(flash_attention_backward, constants=("dropout_p",)),
}
