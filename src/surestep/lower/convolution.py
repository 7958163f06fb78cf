"""Convolution of one to three spatial dimensions, plain and transposed, and its gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower import host, host_convolution
from surestep.lower.shared import ints, opmath, strided, transposed
from surestep.lower.spec import lowering

_MOST_TAPS = 64  # depthwise kernels of more elements than this aren't unrolled
_MOST_GROUPS = 32  # more groups than this aren't convolved one by one


class Geometry(NamedTuple):
    """A convolution's window: the arguments of ``lax.conv_general_dilated``."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]


def _conv(x, weight, geometry, groups):
    """An N, C, spatial... convolution. XLA:CPU has fast ones without groups only: there groups are taken apart."""
    if groups > 1 and jax.default_backend() == "cpu":
        if x.shape[1] == groups and math.prod(weight.shape[2:]) <= _MOST_TAPS:
            return _depthwise(x, weight, geometry)
        if groups <= _MOST_GROUPS:
            parts = zip(jnp.split(x, groups, 1), jnp.split(weight, groups, 0), strict=True)
            return jnp.concatenate([_conv(part, kernel, geometry, 1) for part, kernel in parts], 1)
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=geometry.strides,
        padding=geometry.padding,
        lhs_dilation=geometry.lhs_dilation,
        rhs_dilation=geometry.rhs_dilation,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


def _depthwise(x, weight, geometry):
    """One input channel a group: a sum over the kernel's elements, each times a shifted image, which XLA makes one loop."""
    channels, spatial = x.shape[1], range(2, x.ndim)
    edges = [(0, 0, 0)] * 2 + [(*p, d - 1) for p, d in zip(geometry.padding, geometry.lhs_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    kernel = weight.reshape(channels, -1, *weight.shape[2:])
    counts = [
        (x.shape[axis] - d * (weight.shape[axis] - 1) - 1) // s + 1
        for axis, d, s in zip(spatial, geometry.rhs_dilation, geometry.strides, strict=True)
    ]
    total = jnp.zeros((), x.dtype)
    for offset in np.ndindex(*weight.shape[2:]):
        tap = x
        for axis, k, d, s, count in zip(spatial, offset, geometry.rhs_dilation, geometry.strides, counts, strict=True):
            tap = strided(tap, axis, k * d, count, s)
        factor = kernel[(slice(None), slice(None), *offset)]
        total = total + tap[:, :, None] * factor.reshape(1, *factor.shape, *(1,) * len(offset))
    return total.reshape(x.shape[0], weight.shape[0], *counts)


def _flipped(weight, groups):
    """The weight (in, out / groups, ...) of a transposed convolution as that of the plain one: (out, in / groups, ...)."""
    weight = lax.rev(weight, tuple(range(2, weight.ndim)))
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return jnp.swapaxes(grouped, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])


class Convolution(NamedTuple):
    """The arguments that PyTorch's convolution and its backward have in common."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, n, stride, padding, dilation, is_transposed, output_padding, groups):
        """One int, or a list of one, counts for all of the ``n`` spatial dimensions."""
        stride, padding, dilation, output_padding = (ints(v, n) for v in (stride, padding, dilation, output_padding))
        return cls(stride, padding, dilation, is_transposed, output_padding, groups)

    def __call__(self, x, weight):
        """The convolution itself, without a bias."""
        ones = (1,) * len(self.stride)
        if not self.transposed:
            geometry = Geometry(self.stride, tuple((p, p) for p in self.padding), ones, self.dilation)
            return _conv(x, weight, geometry, self.groups)
        reach = [d * (k - 1) for d, k in zip(self.dilation, weight.shape[2:], strict=True)]
        edges = tuple((r - p, r - p + o) for r, p, o in zip(reach, self.padding, self.output_padding, strict=True))
        return _conv(x, _flipped(weight, self.groups), Geometry(ones, edges, self.stride, self.dilation), self.groups)

    def input_gradient(self, grad, x_shape, weight):
        """The adjoint of a convolution is the transposed one with the same weight, and the other way round."""
        sizes = zip(grad.shape[2:], x_shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, strict=True)
        missing = tuple(x - ((g - 1) * s - 2 * p + d * (k - 1) + 1) for g, x, k, s, p, d in sizes)
        adjoint = self._replace(transposed=not self.transposed, output_padding=missing)
        # an output padding beyond the stride (dilated, transposed) gives windows more than there were inputs
        return adjoint(grad, weight)[tuple(slice(n) for n in x_shape)]


def _wide_on_cpu(*arrays):
    """XLA:CPU sums in the dtype it is given; accelerators sum the half precisions in float32 by themselves."""
    return [a.astype(opmath(a.dtype)) for a in arrays] if jax.default_backend() == "cpu" else arrays


def _result(apply, x, weight, out):
    """Of the convolution, by XLA or by PyTorch's kernel."""
    if host_convolution.faster(x, weight, out, apply, gradients=False):
        return host.call(host_convolution.convolution, apply, lambda x, weight: [apply(x, weight)], x, weight)[0]
    return apply(x, weight)


def _gradients(apply, grad, x, weight, mask):
    """Of x and weight, as far as they are masked in, by XLA or by PyTorch's kernel."""

    def form(grad, x, weight):
        return [
            *([apply.input_gradient(grad, x.shape, weight)] if mask[0] else []),
            *([transposed(lambda v: apply(x, v), weight.shape, weight.dtype)(grad)] if mask[1] else []),
        ]

    if any(mask) and host_convolution.faster(x, weight, grad, apply, gradients=True):
        return host.call(host_convolution.convolution_backward, (mask, *apply), form, grad, x, weight)
    return form(grad, x, weight)


def convolution(out, x, weight, bias, stride, padding, dilation, is_transposed, output_padding, groups, *_backend_flags):
    if 0 in out.shape or x.size == 0:
        empty = jnp.zeros(out.shape, out.dtype)
        return empty if bias is None else empty + bias.reshape(-1, *(1,) * (x.ndim - 2))
    apply = Convolution.of(x.ndim - 2, stride, padding, dilation, is_transposed, output_padding, groups)
    x, weight = _wide_on_cpu(x, weight)
    result = _result(apply, x, weight, out)
    if bias is not None:
        result = result + bias.astype(result.dtype).reshape(-1, *(1,) * (x.ndim - 2))
    return result.astype(out.dtype)


def convolution_backward(out, grad, x, weight, _bias_sizes, stride, padding, dilation, is_transposed, output_padding, groups, output_mask):
    apply = Convolution.of(x.ndim - 2, stride, padding, dilation, is_transposed, output_padding, groups)
    grad, x, weight = _wide_on_cpu(grad, x, weight)
    if grad.size == 0 or x.size == 0:
        return tuple(None if expected is None else jnp.zeros(expected.shape, expected.dtype) for expected in out)
    found = iter(_gradients(apply, grad, x, weight, tuple(output_mask[:2])))
    results = (
        next(found) if output_mask[0] else None,
        next(found) if output_mask[1] else None,
        grad.sum((0, *range(2, grad.ndim))) if output_mask[2] else None,
    )
    return tuple(None if r is None else r.astype(expected.dtype) for r, expected in zip(results, out, strict=True))


TABLE = {
    "convolution.default": lowering(convolution),
    "_convolution.default": lowering(convolution),
    "convolution_overrideable.default": lowering(convolution),
    "convolution_backward.default": lowering(convolution_backward),
}
