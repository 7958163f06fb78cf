"""Bags of embedding rows added up, averaged or maximized in one go, and their gradients."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import from_front, low, opmath
from surestep.lower.spec import lowering

_SUM, _MEAN, _MAX = range(3)


def _bag_of(indices, offsets):
    """The bag of every index: the last that starts at or before it."""
    return jnp.searchsorted(offsets, jnp.arange(indices.shape[0]), side="right") - 1


def _looked_up(weight, indices):
    """The rows of the table, in the dtype to calculate in; of ``nan`` where there is no such row."""
    return jnp.take(weight, from_front(indices, weight.shape[0]), axis=0, mode="fill").astype(opmath(weight.dtype))


def _present(indices, padding_idx):
    """Which indices are no padding. (Without one it is -1, which then is an index out of range like others.)"""
    return indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, np.bool_)


def _or_empty(value, expected):
    """What PyTorch saves, where it saves it: in some modes it gives an empty tensor instead."""
    return value.astype(expected.dtype) if value.shape == expected.shape else jnp.zeros(expected.shape, expected.dtype)


def _maximum(rows, indices, bag, present, bags, table):
    """The largest of every column in each bag, and which row of the table it is from: the first of equals; none where it is ``nan``."""
    lowest = jnp.asarray(low(rows.dtype))
    largest = jnp.full((bags, rows.shape[1]), lowest).at[bag].max(jnp.where(present[:, None], rows, lowest), mode="drop")
    count = indices.shape[0]
    candidate = jnp.where(present[:, None] & (rows == largest[bag]), jnp.arange(count)[:, None], count)
    first = jnp.full(largest.shape, count).at[bag].min(candidate, mode="drop")
    empty = first == count
    source = jnp.where(empty, 0, indices[jnp.minimum(first, count - 1)])
    none = jnp.isnan(largest)
    return jnp.where(empty & ~none, 0, largest), jnp.where(none, table, source)


def embedding_bag(
    out, weight, indices, offsets, scale_grad_by_freq=False, mode=_SUM, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    if indices.shape[0] == 0:
        return tuple(jnp.zeros(o.shape, o.dtype) for o in out)
    bags = out[0].shape[0]
    bag, present = _bag_of(indices, offsets), _present(indices, padding_idx)
    rows = _looked_up(weight, indices)
    counts = jnp.zeros((bags,), np.int64).at[bag].add(present, mode="drop")
    sources = counts
    if mode == _MAX:
        result, sources = _maximum(rows, indices, bag, present, bags, weight.shape[0])
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.astype(rows.dtype)[:, None]
        result = jnp.zeros((bags, rows.shape[1]), rows.dtype).at[bag].add(jnp.where(present[:, None], rows, 0), mode="drop")
    if mode == _MEAN:
        result = result / jnp.maximum(counts, 1)[:, None].astype(result.dtype)
    if mode == _SUM:
        counts = sources = jnp.zeros_like(counts)
    return result.astype(out[0].dtype), _or_empty(bag, out[1]), counts.astype(out[2].dtype), _or_empty(sources, out[3])


def dense_backward(
    out, grad, indices, bag, bag_size, sources, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx=-1
):  # fmt: skip
    dtype = opmath(grad.dtype)
    grad, zeros = grad.astype(dtype), jnp.zeros(out.shape, dtype)
    if indices.shape[0] == 0:
        return zeros.astype(out.dtype)
    if mode == _MAX:
        column = lax.broadcasted_iota(np.dtype(np.int64), sources.shape, 1)
        return zeros.at[sources, column].add(jnp.where((bag_size > 0)[:, None], grad, 0), mode="drop").astype(out.dtype)
    rows, present, indices = grad[bag], _present(indices, padding_idx), from_front(indices, num_weights)
    if mode == _MEAN:
        rows = rows / jnp.maximum(bag_size, 1)[bag][:, None].astype(dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(dtype)[:, None]
    if scale_grad_by_freq:
        rows = rows / jnp.zeros((num_weights,), dtype).at[indices].add(1, mode="drop")[indices][:, None]
    return zeros.at[indices].add(jnp.where(present[:, None], rows, 0), mode="drop").astype(out.dtype)


def backward(
    out, grad, indices, offsets, _bag, bag_size, sources, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx=-1
):  # fmt: skip
    bag = _bag_of(indices, offsets)
    return dense_backward(
        out, grad, indices, bag, bag_size, sources, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


def per_sample_weights_backward(out, grad, weight, indices, offsets, _bag, mode, padding_idx=-1):
    dtype = opmath(grad.dtype)
    product = (grad[_bag_of(indices, offsets)].astype(dtype) * _looked_up(weight, indices)).sum(-1)
    return jnp.where(_present(indices, padding_idx), product, 0).astype(out.dtype)


TABLE = {
    "_embedding_bag.default": lowering(embedding_bag),
    "_embedding_bag_forward_only.default": lowering(embedding_bag),
    "_embedding_bag_dense_backward.default": lowering(dense_backward),
    "_embedding_bag_backward.default": lowering(backward),
    "_embedding_bag_per_sample_weights_backward.default": lowering(per_sample_weights_backward),
}
