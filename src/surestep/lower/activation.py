"""Activation functions and softmax, with their gradients."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import axes, cast
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def elementwise(function):
    """A lowering that computes in the result's dtype (float32 for the 16-bit floats), its numbers included; flags stay as they are."""

    @functools.wraps(function)
    def lowered(out, *args, **kwargs):
        dtype = opmath(out.dtype)
        args = [a if isinstance(a, (bool, str)) else cast(a, dtype) for a in args]
        return cast(function(*args, **kwargs), out.dtype)

    return lowered


def _relu(x):
    return jnp.maximum(x, 0)


def _threshold(x, threshold, value):
    return jnp.where(x <= threshold, value, x)


def _threshold_backward(grad, x, threshold):
    return jnp.where(x <= threshold, jnp.zeros_like(grad), grad)


def _hardtanh(x, low=-1, high=1):
    return jnp.minimum(jnp.maximum(x, low), high)


def _hardtanh_backward(grad, x, low, high):
    return jnp.where((x <= low) | (x >= high), jnp.zeros_like(grad), grad)


def _hardswish(x):
    return x * jnp.clip(x + 3, 0, 6) / 6


def _hardswish_backward(grad, x):
    return jnp.where(x <= -3, jnp.zeros_like(grad), jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


def _hardsigmoid(x):
    return jnp.clip(x + 3, 0, 6) / 6


def _hardsigmoid_backward(grad, x):
    return jnp.where((x > -3) & (x < 3), grad / 6, jnp.zeros_like(grad))


def _leaky_relu(x, slope=0.01):
    return jnp.where(x > 0, x, x * slope)


def _leaky_relu_backward(grad, x, slope, self_is_result):
    return jnp.where(x > 0, grad, grad * slope)  # the result has the sign of the argument


def _elu(x, alpha=1, scale=1, input_scale=1):
    return jnp.where(x > 0, x * scale, jnp.expm1(x * input_scale) * (alpha * scale))


def _celu(x, alpha=1.0):
    return jnp.where(x > 0, x, jnp.expm1(x / alpha) * alpha)


def _elu_backward(grad, alpha, scale, input_scale, is_result, x):
    slope = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad * input_scale * slope, grad * scale)


def _gelu(x, *, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + lax.erf(x * np.sqrt(0.5).astype(x.dtype)))


def _gelu_backward(grad, x, *, approximate="none"):
    if approximate == "tanh":
        beta = np.sqrt(2 / np.pi).astype(x.dtype)
        tanh = jnp.tanh(beta * (x + 0.044715 * x * x * x))
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * beta * (1 + 3 * 0.044715 * x * x))
    cdf = 0.5 * (1 + lax.erf(x * np.sqrt(0.5).astype(x.dtype)))
    pdf = jnp.exp(-0.5 * x * x) * np.sqrt(0.5 / np.pi).astype(x.dtype)
    return grad * (cdf + x * pdf)


def _silu(x):
    return x * lax.logistic(x)


def _silu_backward(grad, x):
    sigmoid = lax.logistic(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


def _sigmoid_backward(grad, y):
    return grad * jnp.conj((1 - y) * y)


def _tanh_backward(grad, y):
    return grad * jnp.conj(1 - y * y)


def _softplus_of(x):
    """log(1 + exp(x)) that doesn't overflow."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _softplus(x, beta=1, threshold=20):
    return jnp.where(x * beta > threshold, x, _softplus_of(x * beta) / beta)


def _softplus_backward(grad, x, beta, threshold):
    return jnp.where(x * beta > threshold, grad, grad * lax.logistic(x * beta))


def _mish(x):
    return x * jnp.tanh(_softplus_of(x))


def _mish_backward(grad, x):
    tanh = jnp.tanh(_softplus_of(x))
    return grad * (tanh + x * lax.logistic(x) * (1 - tanh * tanh))


def _softshrink(x, lambd=0.5):
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))  # x * 0 keeps nan


def _hardshrink(x, lambd=0.5):
    return jnp.where((x >= -lambd) & (x <= lambd), jnp.zeros_like(x), x)


def _shrink_backward(grad, x, lambd):
    return jnp.where((x >= -lambd) & (x <= lambd), jnp.zeros_like(grad), grad)


def _prelu(x, weight):
    return jnp.where(x > 0, x, weight * x)


def prelu_backward(outs, grad, x, weight):
    dtype = opmath(outs[0].dtype)
    grad, x, weight = cast(grad, dtype), cast(x, dtype), cast(weight, dtype)
    return (
        cast(jnp.where(x > 0, grad, weight * grad), outs[0].dtype),
        cast(jnp.where(x > 0, jnp.zeros_like(grad), x * grad), outs[1].dtype),
    )


def glu(out, x, dim=-1):
    left, right = jnp.split(cast(x, opmath(out.dtype)), 2, axis=dim)
    return cast(left * lax.logistic(right), out.dtype)


def glu_backward(out, grad, x, dim):
    dtype = opmath(out.dtype)
    grad = cast(grad, dtype)
    left, right = jnp.split(cast(x, dtype), 2, axis=dim)
    sigmoid = lax.logistic(right)
    return cast(jnp.concatenate([grad * sigmoid, grad * left * sigmoid * (1 - sigmoid)], axis=dim), out.dtype)


def log_sigmoid_forward(outs, x):
    dtype = opmath(outs[0].dtype)
    x = cast(x, dtype)
    buffer = jnp.exp(-jnp.abs(x))
    output = cast(jnp.minimum(x, 0) - jnp.log1p(buffer), outs[0].dtype)
    # Only the CPU's kernels fill the buffer, and the gradient here doesn't read it.
    return output, cast(buffer, outs[1].dtype) if outs[1].shape == x.shape else jnp.zeros(outs[1].shape, outs[1].dtype)


def log_sigmoid_backward(out, grad, x, buffer):
    dtype = opmath(out.dtype)
    return cast(cast(grad, dtype) * lax.logistic(-cast(x, dtype)), out.dtype)


def rrelu_with_noise_backward(out, grad, x, noise, lower, upper, training, self_is_result):
    dtype = opmath(out.dtype)
    grad = cast(grad, dtype)
    if training:
        return cast(grad * cast(noise, dtype), out.dtype)
    return cast(jnp.where(cast(x, dtype) > 0, grad, grad * ((cast(lower, dtype) + cast(upper, dtype)) / 2)), out.dtype)


def _softmax(x, dim):
    top = jnp.max(x, axis=dim, keepdims=True)
    powers = jnp.exp(x - top)
    return powers / jnp.sum(powers, axis=dim, keepdims=True)


def softmax(out, x, dim, half_to_float):
    x = cast(x, opmath(out.dtype))
    return cast(_softmax(x, axes(dim, x.ndim)), out.dtype) if x.size else jnp.zeros(out.shape, out.dtype)


def safe_softmax(out, x, dim):
    """Zeros, not nan, where a row is all -inf: attention that may look nowhere."""
    x = cast(x, opmath(out.dtype))
    if not x.size:
        return jnp.zeros(out.shape, out.dtype)
    dims = axes(dim, x.ndim)
    nothing = jnp.all(x == -jnp.inf, axis=dims, keepdims=True)
    return cast(jnp.where(nothing, jnp.zeros_like(x), _softmax(x, dims)), out.dtype)


def log_softmax(out, x, dim, half_to_float):
    x = cast(x, opmath(out.dtype))
    if not x.size:
        return jnp.zeros(out.shape, out.dtype)
    dims = axes(dim, x.ndim)
    shifted = x - jnp.max(x, axis=dims, keepdims=True)
    return cast(shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dims, keepdims=True)), out.dtype)


def softmax_backward(out, grad, y, dim, input_dtype):
    dtype = opmath(y.dtype)
    grad, y = cast(grad, dtype), cast(y, dtype)
    scaled = grad * y
    return cast(scaled - y * jnp.sum(scaled, axis=axes(dim, y.ndim), keepdims=True), out.dtype)


def log_softmax_backward(out, grad, y, dim, input_dtype):
    dtype = opmath(y.dtype)
    grad, y = cast(grad, dtype), cast(y, dtype)
    return cast(grad - jnp.exp(y) * jnp.sum(grad, axis=axes(dim, y.ndim), keepdims=True), out.dtype)


_ELEMENTWISE = {
    "relu": _relu, "threshold": _threshold, "threshold_backward": _threshold_backward,
    "hardtanh": _hardtanh, "hardtanh_backward": _hardtanh_backward,
    "hardswish": _hardswish, "hardswish_backward": _hardswish_backward,
    "hardsigmoid": _hardsigmoid, "hardsigmoid_backward": _hardsigmoid_backward,
    "leaky_relu": _leaky_relu, "leaky_relu_backward": _leaky_relu_backward,
    "elu": _elu, "elu_backward": _elu_backward, "celu": _celu,
    "gelu": _gelu, "gelu_backward": _gelu_backward,
    "silu": _silu, "silu_backward": _silu_backward,
    "sigmoid_backward": _sigmoid_backward, "tanh_backward": _tanh_backward,
    "softplus": _softplus, "softplus_backward": _softplus_backward,
    "mish": _mish, "mish_backward": _mish_backward,
    "softshrink": _softshrink, "softshrink_backward": _shrink_backward,
    "hardshrink": _hardshrink, "hardshrink_backward": _shrink_backward,
    "_prelu_kernel": _prelu,
}  # fmt: skip
_WHOLE = {
    "_prelu_kernel_backward": prelu_backward,
    "glu": glu, "glu_backward": glu_backward,
    "log_sigmoid_forward": log_sigmoid_forward, "log_sigmoid_backward": log_sigmoid_backward,
    "rrelu_with_noise_backward": rrelu_with_noise_backward,
    "_softmax": softmax, "_softmax_backward_data": softmax_backward, "_safe_softmax": safe_softmax,
    "_log_softmax": log_softmax, "_log_softmax_backward_data": log_softmax_backward,
}  # fmt: skip
TABLE = {
    **{f"{name}.default": lowering(elementwise(function)) for name, function in _ELEMENTWISE.items()},
    **{f"{name}.default": lowering(function) for name, function in _WHOLE.items()},
}
