"""Convolution of one to three spatial dimensions, plain and transposed, and its gradients."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from surestep.lower.shared import ints, opmath, transposed
from surestep.lower.spec import lowering


def _conv(x, weight, *, strides, padding, lhs_dilation=None, rhs_dilation=None, groups=1):
    """An N, C, spatial... convolution at full precision, summed in the opmath dtype of what it is given."""
    return lax.conv_general_dilated(
        x, weight, window_strides=strides, padding=padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
        feature_group_count=groups, precision=lax.Precision.HIGHEST, preferred_element_type=opmath(x.dtype),
    )


def _flipped(weight, groups):
    """The weight (in, out / groups, ...) of a transposed convolution as that of the plain one: (out, in / groups, ...)."""
    weight = lax.rev(weight, tuple(range(2, weight.ndim)))
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return jnp.swapaxes(grouped, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])


def _apply(x, weight, *, stride, padding, dilation, transposed, output_padding, groups):
    n = x.ndim - 2
    stride, padding, dilation = ints(stride, n), ints(padding, n), ints(dilation, n)
    if not transposed:
        return _conv(x, weight, strides=stride, padding=[(p, p) for p in padding], rhs_dilation=dilation, groups=groups)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    edges = [(r - p, r - p + o) for r, p, o in zip(reach, padding, ints(output_padding, n), strict=True)]
    return _conv(
        x, _flipped(weight, groups), strides=(1,) * n, padding=edges, lhs_dilation=stride, rhs_dilation=dilation, groups=groups
    )


def convolution(out, x, weight, bias, stride, padding, dilation, is_transposed, output_padding, groups, *_backend_flags):
    result = _apply(
        x, weight, stride=stride, padding=padding, dilation=dilation, transposed=is_transposed, output_padding=output_padding,
        groups=groups,
    )
    if bias is not None:
        result = result + bias.astype(result.dtype).reshape(-1, *(1,) * (x.ndim - 2))
    return result.astype(out.dtype)


def convolution_backward(
    out, grad, x, weight, _bias_sizes, stride, padding, dilation, is_transposed, output_padding, groups, output_mask
):
    dtype = opmath(x.dtype)
    grad, x, weight = grad.astype(dtype), x.astype(dtype), weight.astype(dtype)
    apply = functools.partial(
        _apply, stride=stride, padding=padding, dilation=dilation, transposed=is_transposed, output_padding=output_padding,
        groups=groups,
    )
    grad_input = transposed(lambda v: apply(v, weight), x.shape, dtype)(grad) if output_mask[0] else None
    grad_weight = transposed(lambda v: apply(x, v), weight.shape, dtype)(grad) if output_mask[1] else None
    grad_bias = grad.sum((0, *range(2, grad.ndim))) if output_mask[2] else None
    return tuple(
        None if gradient is None else gradient.astype(expected.dtype)
        for gradient, expected in zip((grad_input, grad_weight, grad_bias), out, strict=True)
    )


TABLE = {
    "convolution.default": lowering(convolution),
    "_convolution.default": lowering(convolution),
    "convolution_overrideable.default": lowering(convolution),
    "convolution_backward.default": lowering(convolution_backward),
}
