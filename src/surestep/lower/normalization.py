"""Batch, layer, group and RMS normalization with their gradients, weight norm and renorm; all calculated in opmath."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from surestep.lower.shared import axis_of, widened
from surestep.lower.spec import lowering, number


def _channels(vector, ndim):
    """A vector of channels that broadcasts over N, C, spatial..."""
    return vector.reshape(1, -1, *(1,) * (ndim - 2))


def _cast(results, out):
    return tuple(
        None if result is None or expected is None else result.astype(expected.dtype) for result, expected in zip(results, out, strict=True)
    )


def _affine(x, weight, bias):
    if weight is not None:
        x = x * weight.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def _moments(x, axes, keepdims=False):
    """Mean and biased variance by two passes: no cancellation."""
    mean = x.mean(axes, keepdims=True)
    variance = jnp.square(x - mean).mean(axes, keepdims=keepdims)
    return (mean if keepdims else jnp.squeeze(mean, axes)), variance


def _batch_axes(x):
    return (0, *range(2, x.ndim))


def _batch_norm(x, weight, bias, mean, invstd):
    """Normalized with given statistics; the mean goes first, so that a large one cancels exactly."""
    scale = invstd if weight is None else invstd * weight.astype(invstd.dtype)
    result = (x - _channels(mean, x.ndim)) * _channels(scale, x.ndim)
    return result if bias is None else result + _channels(bias.astype(mean.dtype), x.ndim)


def _given(statistic, expected):
    """A saved statistic where PyTorch gives one: in evaluation the CPU gives an empty tensor."""
    return statistic if expected.shape == statistic.shape else jnp.zeros(expected.shape, expected.dtype)


def _batch_norm_training(x, weight, bias, eps):
    wide = widened(x)
    mean, variance = _moments(wide, _batch_axes(x))
    invstd = lax.rsqrt(variance + number(eps, variance.dtype))
    return _batch_norm(wide, weight, bias, mean, invstd), mean, invstd, variance


def native_batch_norm(out, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """The running statistics are left alone: ``_native_batch_norm_legit_functional`` gives the new ones."""
    if training:
        return _cast(_batch_norm_training(x, weight, bias, eps)[:3], out)
    return batch_norm_inference(out, x, weight, bias, running_mean, running_var, momentum, eps)


def batch_norm_inference(out, x, weight, bias, running_mean, running_var, _momentum, eps):
    wide = widened(x)
    mean, variance = running_mean.astype(wide.dtype), running_var.astype(wide.dtype)
    invstd = lax.rsqrt(variance + number(eps, wide.dtype))
    result = _batch_norm(wide, weight, bias, mean, invstd)
    return _cast((result, _given(mean, out[1]), _given(invstd, out[2])), out)


def batch_norm_no_stats(out, x, weight, bias, training, momentum, eps):
    return native_batch_norm(out, x, weight, bias, None, None, True, momentum, eps)


def batch_norm_functional(out, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Also the running statistics: an exponential average of the means and of the unbiased variances."""
    if not training:
        return (*batch_norm_inference(out[:3], x, weight, bias, running_mean, running_var, momentum, eps), running_mean, running_var)
    result, mean, invstd, variance = _batch_norm_training(x, weight, bias, eps)
    count = x.size // max(x.shape[1], 1)
    unbiased = variance * number(count / (count - 1) if count > 1 else math.nan, variance.dtype)
    momentum = number(momentum, mean.dtype)
    new_mean = momentum * mean + (1 - momentum) * running_mean.astype(mean.dtype)
    new_var = momentum * unbiased + (1 - momentum) * running_var.astype(mean.dtype)
    return _cast((result, mean, invstd, new_mean, new_var), out)


def native_batch_norm_backward(out, grad, x, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask):
    grad, x = widened(grad), widened(x)
    if train:
        mean, invstd = save_mean.astype(x.dtype), save_invstd.astype(x.dtype)
    else:
        mean, invstd = running_mean.astype(x.dtype), lax.rsqrt(running_var.astype(x.dtype) + number(eps, x.dtype))
    count = x.size // max(x.shape[1], 1)
    centered = x - _channels(mean, x.ndim)
    total, product = grad.sum(_batch_axes(x)), (grad * centered).sum(_batch_axes(x))
    scale = invstd if weight is None else invstd * weight.astype(x.dtype)
    grad_input = grad
    if train and count:
        slope = product * jnp.square(invstd) / count
        grad_input = grad - _channels(total / count, x.ndim) - centered * _channels(slope, x.ndim)
    grad_input = grad_input * _channels(scale, x.ndim)
    # PyTorch's inference ignores the mask for the input's gradient: what it says is given
    return _cast((grad_input, product * invstd, total), out)


def native_layer_norm(out, x, normalized_shape, weight, bias, eps):
    wide = widened(x)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    mean, variance = _moments(wide, axes, keepdims=True)
    rstd = lax.rsqrt(variance + number(eps, wide.dtype))
    result = _affine((wide - mean) * rstd, weight, bias)
    return _cast((result, mean.reshape(out[1].shape), rstd.reshape(out[2].shape)), out)


def native_layer_norm_backward(out, grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
    grad, x = widened(grad), widened(x)
    outer = x.ndim - len(normalized_shape)
    axes, batch = tuple(range(outer, x.ndim)), tuple(range(outer))
    mean, rstd = (v.astype(x.dtype).reshape(*x.shape[:outer], *(1,) * len(axes)) for v in (mean, rstd))
    normal = (x - mean) * rstd
    scaled = _affine(grad, weight, None)
    grad_input = rstd * (scaled - scaled.mean(axes, keepdims=True) - normal * (scaled * normal).mean(axes, keepdims=True))
    results = (
        grad_input if output_mask[0] else None,
        (grad * normal).sum(batch) if output_mask[1] else None,
        grad.sum(batch) if output_mask[2] else None,
    )
    return _cast(results, out)


def native_group_norm(out, x, weight, bias, n, c, hw, groups, eps):
    wide = widened(x).reshape(n, groups, c // groups, hw)
    mean, variance = _moments(wide, (2, 3), keepdims=True)
    rstd = lax.rsqrt(variance + number(eps, wide.dtype))
    affine = [None if v is None else v.reshape(1, groups, c // groups, 1) for v in (weight, bias)]
    result = _affine((wide - mean) * rstd, *affine)
    return _cast((result.reshape(out[0].shape), mean.reshape(n, groups), rstd.reshape(n, groups)), out)


def native_group_norm_backward(out, grad, x, mean, rstd, weight, n, c, hw, groups, output_mask):
    shape = (n, groups, c // groups, hw)
    grad, wide = widened(grad).reshape(shape), widened(x).reshape(shape)
    mean, rstd = (v.astype(wide.dtype).reshape(n, groups, 1, 1) for v in (mean, rstd))
    normal = (wide - mean) * rstd
    scaled = grad if weight is None else grad * weight.astype(wide.dtype).reshape(1, groups, -1, 1)
    slope = (scaled * normal).mean((2, 3), keepdims=True)
    grad_input = rstd * (scaled - scaled.mean((2, 3), keepdims=True) - normal * slope)
    results = (
        grad_input.reshape(x.shape) if output_mask[0] else None,
        (grad * normal).sum((0, 3)).reshape(c) if output_mask[1] else None,
        grad.sum((0, 3)).reshape(c) if output_mask[2] else None,
    )
    return _cast(results, out)


def fused_rms_norm(out, x, normalized_shape, weight, eps):
    wide = widened(x)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    eps = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.square(wide).mean(axes, keepdims=True) + number(eps, wide.dtype))
    return _cast((_affine(wide * rstd, weight, None), rstd), out)


def fused_rms_norm_backward(out, grad, x, normalized_shape, rstd, weight, output_mask):
    grad, x = widened(grad), widened(x)
    outer = x.ndim - len(normalized_shape)
    normal = x * rstd.astype(x.dtype)
    scaled = _affine(grad, weight, None)
    slope = (scaled * normal).mean(tuple(range(outer, x.ndim)), keepdims=True)
    results = (
        rstd.astype(x.dtype) * (scaled - normal * slope) if output_mask[0] else None,
        (grad * normal).sum(tuple(range(outer))) if output_mask[1] else None,
    )
    return _cast(results, out)


def _other_axes(x, dim):
    return tuple(d for d in range(x.ndim) if d != axis_of(dim, x.ndim))


def weight_norm(out, v, g, dim=0):
    wide = widened(v)
    norm = jnp.sqrt(jnp.square(wide).sum(_other_axes(v, dim), keepdims=True))
    return _cast((wide * (g.astype(wide.dtype) / norm), norm.reshape(out[1].shape)), out)


def weight_norm_backward(out, grad, v, g, norm, dim):
    grad, v = widened(grad), widened(v)
    g, norm = g.astype(v.dtype), norm.astype(v.dtype).reshape(g.shape)
    product = (grad * v).sum(_other_axes(v, dim), keepdims=True)
    return _cast(((grad - v * (product / jnp.square(norm))) * (g / norm), product / norm), out)


def renorm(out, x, p, dim, maxnorm):
    """Slices along ``dim`` whose p-norm is above ``maxnorm``, scaled down to it."""
    wide = widened(x)
    size = jnp.abs(wide)
    axes = _other_axes(x, dim)
    if p == math.inf:
        norm = size.max(axes, keepdims=True)
    else:
        norm = jnp.power(jnp.power(size, number(p, size.dtype)).sum(axes, keepdims=True), number(1 / p, size.dtype))
    limit = number(maxnorm, size.dtype)
    scale = jnp.where(norm > limit, limit / (norm + number(1e-7, size.dtype)), jnp.ones_like(norm))
    return (wide * scale).astype(out.dtype)


TABLE = {
    "native_batch_norm.default": lowering(native_batch_norm),
    "_native_batch_norm_legit_functional.default": lowering(batch_norm_functional),
    "_native_batch_norm_legit.no_stats": lowering(batch_norm_no_stats),
    "_native_batch_norm_legit_no_training.default": lowering(batch_norm_inference),
    "native_batch_norm_backward.default": lowering(native_batch_norm_backward),
    "native_layer_norm.default": lowering(native_layer_norm),
    "native_layer_norm_backward.default": lowering(native_layer_norm_backward),
    "native_group_norm.default": lowering(native_group_norm),
    "native_group_norm_backward.default": lowering(native_group_norm_backward),
    "_fused_rms_norm.default": lowering(fused_rms_norm),
    "_fused_rms_norm_backward.default": lowering(fused_rms_norm_backward),
    "_weight_norm_interface.default": lowering(weight_norm),
    "_weight_norm_interface_backward.default": lowering(weight_norm_backward),
    "renorm.default": lowering(renorm, constants=("p",)),
}
