"""Losses and their gradients."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import cast
from surestep.lower.shared import from_front, opmath
from surestep.lower.spec import lowering

NONE, MEAN, SUM = 0, 1, 2


def _reduced(out, losses, reduction):
    if reduction == SUM:
        losses = jnp.sum(losses)
    elif reduction == MEAN:
        losses = jnp.sum(losses) / cast(losses.size, losses.dtype)
    return cast(losses, out.dtype)


def _share(grad, x, reduction):
    """The gradient of one element's loss."""
    return grad / cast(x.size, grad.dtype) if reduction == MEAN else grad


def loss(function):
    """``function(x, target, *numbers)`` for each element, then the reduction."""

    def lowered(out, x, target, reduction=MEAN, *numbers):
        dtype = opmath(out.dtype)
        return _reduced(out, function(cast(x, dtype), cast(target, dtype), *(cast(n, dtype) for n in numbers)), reduction)

    return lowered


def loss_backward(function):
    """``function(x, target, *numbers)`` is the derivative of one element's loss by ``x``."""

    def lowered(out, grad, x, target, reduction, *numbers):
        dtype = opmath(out.dtype)
        grad, x, target = cast(grad, dtype), cast(x, dtype), cast(target, dtype)
        slope = function(x, target, *(cast(n, dtype) for n in numbers))
        return cast(slope * _share(grad, slope, reduction), out.dtype)

    return lowered


def _squared(x, target):
    return (x - target) * (x - target)


def _smooth_l1(x, target, beta=1.0):
    size = jnp.abs(x - target)
    return jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)


def _smooth_l1_slope(x, target, beta):
    difference = x - target
    return jnp.where(jnp.abs(difference) < beta, difference / beta, jnp.sign(difference))


def _huber(x, target, delta=1.0):
    size = jnp.abs(x - target)
    return jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))


def _huber_slope(x, target, delta):
    return jnp.clip(x - target, -delta, delta)


def _soft_margin(x, target):
    return jnp.logaddexp(jnp.zeros((), x.dtype), -x * target)


def _soft_margin_slope(x, target):
    return -target * lax.logistic(-x * target)


def binary_cross_entropy(out, x, target, weight=None, reduction=MEAN):
    dtype = opmath(out.dtype)
    x, target = cast(x, dtype), cast(target, dtype)
    # a logarithm is never below -100, so that a certain and wrong prediction has a finite loss
    losses = (target - 1) * jnp.maximum(jnp.log1p(-x), -100) - target * jnp.maximum(jnp.log(x), -100)
    return _reduced(out, losses if weight is None else losses * cast(weight, dtype), reduction)


def binary_cross_entropy_backward(out, grad, x, target, weight=None, reduction=MEAN):
    dtype = opmath(out.dtype)
    grad, x, target = cast(grad, dtype), cast(x, dtype), cast(target, dtype)
    result = _share(grad, x, reduction) * (x - target) / jnp.maximum((1 - x) * x, cast(1e-12, dtype))
    return cast(result if weight is None else result * cast(weight, dtype), out.dtype)


def binary_cross_entropy_with_logits(out, x, target, weight=None, pos_weight=None, reduction=MEAN):
    dtype = opmath(out.dtype)
    x, target = cast(x, dtype), cast(target, dtype)
    log_sigmoid = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    if pos_weight is not None:
        log_sigmoid = log_sigmoid * ((cast(pos_weight, dtype) - 1) * target + 1)
    losses = (1 - target) * x - log_sigmoid
    return _reduced(out, losses if weight is None else losses * cast(weight, dtype), reduction)


def _class_weights(x, target, weight, ignore_index, dtype):
    """Each target's class, its weight: 0 where it is ignored, and nan where there is no such class (PyTorch raises IndexError)."""
    classes = x.shape[0 if x.ndim == 1 else 1]
    known = (target >= 0) & (target < classes)
    safe = jnp.where(known, target, 0)
    weights = jnp.ones(target.shape, dtype) if weight is None else jnp.take(cast(weight, dtype), safe, axis=0)
    weights = jnp.where(known, weights, cast(np.nan, dtype))
    return safe, jnp.where(target == ignore_index, jnp.zeros_like(weights), weights)


def nll_loss(outs, x, target, weight, reduction, ignore_index):
    dtype = opmath(outs[0].dtype)
    axis = 0 if x.ndim == 1 else 1
    target = target.reshape(x.shape[:axis] + x.shape[axis + 1 :])
    safe, weights = _class_weights(x, target, weight, ignore_index, dtype)
    chosen = jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(safe, axis), axis=axis), axis)
    losses = jnp.where(target == ignore_index, jnp.zeros_like(weights), -cast(chosen, dtype) * weights)
    if reduction == NONE and x.ndim > 1:
        return cast(losses, outs[0].dtype).reshape(outs[0].shape), jnp.zeros(outs[1].shape, outs[1].dtype)
    total = jnp.sum(weights)
    result = jnp.sum(losses) / total if reduction == MEAN else jnp.sum(losses)
    return cast(result, outs[0].dtype), cast(total, outs[1].dtype)


def nll_loss_backward(out, grad, x, target, weight, reduction, ignore_index, total_weight):
    dtype = opmath(out.dtype)
    axis = 0 if x.ndim == 1 else 1
    target = target.reshape(x.shape[:axis] + x.shape[axis + 1 :])
    safe, weights = _class_weights(x, target, weight, ignore_index, dtype)
    grad = cast(grad, dtype)
    share = grad / cast(total_weight, dtype) if reduction == MEAN else grad.reshape(target.shape if reduction == NONE else ())
    share = jnp.where(target == ignore_index, jnp.zeros_like(weights), -share * weights)
    # a comparison with every class is one loop; a scatter is many small writes
    column = lax.broadcasted_iota(target.dtype, x.shape, axis)
    return cast(jnp.where(column == jnp.expand_dims(safe, axis), jnp.expand_dims(share, axis), cast(0, dtype)), out.dtype)


def _margins(x, target, p, margin, weight):
    """Of a batch: the margin left to each class but the target's own, and the factor of its p-th power."""
    x, target = jnp.atleast_2d(x), jnp.atleast_1d(target)
    own = jnp.take_along_axis(x, from_front(target, x.shape[1])[:, None], axis=1)  # nan where there is no such class
    other = lax.broadcasted_iota(target.dtype, x.shape, 1) != target[:, None]
    left = jnp.where(other, jnp.maximum(cast(margin, x.dtype) - own + x, 0), cast(0, x.dtype))
    factor = cast(1 / x.shape[1], x.dtype) if weight is None else jnp.take(cast(weight, x.dtype), target)[:, None] / x.shape[1]
    return left, other, factor


def _active(margins):
    """The derivative of the margins that are left: 1, 0 where none is left, ``nan`` where there is no such class."""
    return jnp.where(jnp.isnan(margins), margins, (margins > 0).astype(margins.dtype))


def multi_margin_loss(out, x, target, p=1, margin=1, weight=None, reduction=MEAN):
    left, _, factor = _margins(cast(x, opmath(out.dtype)), target, p, margin, weight)
    losses = jnp.sum((left if p == 1 else left * left) * factor, axis=1)
    return _reduced(out, losses, reduction).reshape(out.shape)


def multi_margin_loss_backward(out, grad, x, target, p, margin, weight=None, reduction=MEAN):
    dtype = opmath(out.dtype)
    left, other, factor = _margins(cast(x, dtype), target, p, margin, weight)
    slope = (_active(left) if p == 1 else 2 * left) * factor
    own = -jnp.sum(slope, axis=1, keepdims=True)
    share = _share(cast(grad, dtype), left[:, 0], reduction)
    share = share.reshape(-1, 1) if reduction == NONE else share
    return cast(jnp.where(other, slope, own) * share, out.dtype).reshape(out.shape)


def _listed(x, target):
    """Of a batch of target lists, each up to its first -1: which entries count, and which classes they name."""
    before_end = jnp.cumprod((target != -1).astype(np.int32), axis=1).astype(np.bool_)
    one_hot = (target[:, :, None] == jnp.arange(x.shape[1], dtype=target.dtype)) & before_end[:, :, None]
    return before_end, jnp.any(one_hot, axis=1)


def _label_margins(x, target, before_end, named):
    """1 - x[target] + x[other], for each listed target and each class that isn't listed: batch, target, class."""
    own = jnp.take_along_axis(x, jnp.where(before_end, from_front(target, x.shape[1]), 0), axis=1)
    margins = 1 - own[:, :, None] + x[:, None, :]
    return jnp.where(before_end[:, :, None] & ~named[:, None, :], jnp.maximum(margins, 0), cast(0, x.dtype))


def multilabel_margin_loss(outs, x, target, reduction):
    rows, targets = jnp.atleast_2d(cast(x, opmath(outs[0].dtype))), jnp.atleast_2d(target)
    before_end, named = _listed(rows, targets)
    losses = jnp.sum(_label_margins(rows, targets, before_end, named), axis=(1, 2)) / rows.shape[1]
    return _reduced(outs[0], losses, reduction).reshape(outs[0].shape), cast(named, outs[1].dtype).reshape(outs[1].shape)


def multilabel_margin_loss_backward(out, grad, x, target, reduction, is_target):
    dtype = opmath(out.dtype)
    rows, targets = jnp.atleast_2d(cast(x, dtype)), jnp.atleast_2d(target)
    before_end, named = _listed(rows, targets)
    active = _active(_label_margins(rows, targets, before_end, named))
    one_hot = (targets[:, :, None] == jnp.arange(rows.shape[1], dtype=target.dtype)) & before_end[:, :, None]
    slope = jnp.sum(active, axis=1) - jnp.sum(one_hot * jnp.sum(active, axis=2, keepdims=True), axis=1)
    share = _share(cast(grad, dtype), rows[:, 0], reduction)
    share = share.reshape(-1, 1) if reduction == NONE else share
    return cast(slope * share / rows.shape[1], out.dtype).reshape(out.shape)


_FUNCTIONS = {
    "mse_loss": loss(_squared), "mse_loss_backward": loss_backward(lambda x, target: 2 * (x - target)),
    "smooth_l1_loss": loss(_smooth_l1), "smooth_l1_loss_backward": loss_backward(_smooth_l1_slope),
    "huber_loss": loss(_huber), "huber_loss_backward": loss_backward(_huber_slope),
    "soft_margin_loss": loss(_soft_margin), "soft_margin_loss_backward": loss_backward(_soft_margin_slope),
    "binary_cross_entropy": binary_cross_entropy, "binary_cross_entropy_backward": binary_cross_entropy_backward,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "nll_loss_forward": nll_loss, "nll_loss_backward": nll_loss_backward,
    "nll_loss2d_forward": nll_loss, "nll_loss2d_backward": nll_loss_backward,
    "multilabel_margin_loss_forward": multilabel_margin_loss, "multilabel_margin_loss_backward": multilabel_margin_loss_backward,
}  # fmt: skip
TABLE = {
    **{f"{name}.default": lowering(function) for name, function in _FUNCTIONS.items()},
    "multi_margin_loss.default": lowering(multi_margin_loss, constants=("p",)),
    "multi_margin_loss_backward.default": lowering(multi_margin_loss_backward, constants=("p",)),
}
