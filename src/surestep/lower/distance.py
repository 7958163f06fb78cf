"""Distances between all pairs of points, and their gradients."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from surestep.lower.spec import lowering, number


def _distances(difference, p):
    """The p-norm over the last dimension."""
    size = jnp.abs(difference)
    if p == 0:
        return (size != 0).astype(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return jnp.sqrt(jnp.square(size).sum(-1))
    if p == math.inf:
        return size.max(-1, initial=0)
    return jnp.power(jnp.power(size, number(p, size.dtype)).sum(-1), number(1 / p, size.dtype))


def _slopes(difference, distance, p):
    """How a distance changes with the difference; zero where they are the same point."""
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return jnp.sign(difference)
    distance = distance[..., None]
    apart = distance != 0
    safe = jnp.where(apart, distance, 1)
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if p == math.inf:
        return jnp.where(apart & (size == distance), sign, 0)
    if p < 2:
        slope = jnp.where(size == 0, 0, sign * jnp.power(jnp.where(size == 0, 1, size), p - 1))
        return jnp.where(apart, slope / jnp.power(safe, p - 1), 0)
    return jnp.where(apart, difference * jnp.power(size, p - 2) / jnp.power(safe, p - 1), 0)


def _differences(x, y):
    return x[..., :, None, :] - y[..., None, :, :]


def cdist(out, x, y, p, _compute_mode=None):
    """Always by differences: the matrix product that PyTorch takes for many points loses accuracy."""
    return jnp.zeros(out.shape, out.dtype) if 0 in out.shape else jnp.broadcast_to(_distances(_differences(x, y), p), out.shape)


def euclidean_dist(out, x, y):
    return cdist(out, x, y, 2)


def cdist_backward(out, grad, x, y, p, distance):
    if 0 in out.shape or grad.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    return jnp.broadcast_to((grad[..., None] * _slopes(_differences(x, y), distance, p)).sum(-2), out.shape)


def _pairs(count):
    return np.triu_indices(count, 1)


def pdist(out, x, p=2.0):
    first, second = _pairs(x.shape[0])
    return _distances(x[first] - x[second], p) if out.shape[0] else jnp.zeros(out.shape, out.dtype)


def pdist_backward(out, grad, x, p, distance):
    if grad.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    first, second = _pairs(x.shape[0])
    slope = grad[:, None] * _slopes(x[first] - x[second], distance, p)
    return jnp.zeros(out.shape, out.dtype).at[first].add(slope).at[second].add(-slope)


TABLE = {
    "_cdist_forward.default": lowering(cdist, constants=("p",)),
    "_cdist_backward.default": lowering(cdist_backward, constants=("p",)),
    "_euclidean_dist.default": lowering(euclidean_dist),
    "_pdist_forward.default": lowering(pdist, constants=("p",)),
    "_pdist_backward.default": lowering(pdist_backward, constants=("p",)),
}
