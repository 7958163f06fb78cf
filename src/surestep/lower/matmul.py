"""Matrix and vector products, with and without a scaled summand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering, number


def product(x, y, contract, batch=((), ()), dtype=None):
    """``lax.dot_general`` at full float32 precision; the half precisions are summed in float32."""
    dtype = opmath(dtype or x.dtype)
    return lax.dot_general(x, y, (contract, batch), precision=lax.Precision.HIGHEST, preferred_element_type=dtype)


def _mm(x, y, dtype=None):
    return product(x, y, ((1,), (0,)), dtype=dtype)


def _bmm(x, y, dtype=None):
    return product(x, y, ((2,), (1,)), ((0,), (0,)), dtype=dtype)


def _addbmm(x, y, dtype=None):
    return product(x, y, ((0, 2), (0, 1)), dtype=dtype)


def _mv(x, y, dtype=None):
    return product(x, y, ((1,), (0,)), dtype=dtype)


def _dot(x, y, dtype=None):
    return product(x, y, ((0,), (0,)), dtype=dtype)


def _outer(x, y, dtype=None):
    return (x[:, None] * y[None, :]).astype(dtype or opmath(x.dtype))


def plain(multiply):
    def matmul(out, x, y, _out_dtype=None):
        return multiply(x, y, out.dtype).astype(out.dtype)

    return matmul


def scaled_sum(input, product, beta, alpha, out):
    """``beta * input + alpha * product``; a beta of 0 leaves nan in ``input`` out."""
    dtype = product.dtype
    result = product if _is(alpha, 1) else product * number(alpha, dtype)
    if _is(beta, 1):
        result = result + input.astype(dtype)
    elif not _is(beta, 0):
        beta = number(beta, dtype)
        result = result + jnp.where(beta == 0, beta, beta * input.astype(dtype))
    return jnp.broadcast_to(result, out.shape).astype(out.dtype)


def _is(value, constant):
    return isinstance(value, (bool, int, float, complex)) and value == constant


def added(multiply):
    def add_matmul(out, input, x, y, _out_dtype=None, *, beta=1, alpha=1):
        return scaled_sum(input, multiply(x, y, out.dtype), beta, alpha, out)

    return add_matmul


def addr(out, input, x, y, *, beta=1, alpha=1):
    dtype = opmath(out.dtype)
    return scaled_sum(input, _outer(x.astype(dtype), y.astype(dtype)), beta, alpha, out)


def addmm_activation(out, input, x, y, *, beta=1, alpha=1, use_gelu=False):
    result = scaled_sum(input, _mm(x, y, out.dtype), beta, alpha, out)
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, 0)


def vdot(out, x, y):
    return _dot(jnp.conj(x), y).astype(out.dtype)


def linear(out, x, weight, bias=None):
    result = product(x, weight, ((x.ndim - 1,), (weight.ndim - 1,)))
    return (result if bias is None else result + bias.astype(result.dtype)).astype(out.dtype)


def linear_backward(outs, x, grad, weight, mask):
    """The gradients of the input, the weight and the bias, as far as ``mask`` asks for them."""
    rows = grad.reshape(-1, *weight.shape[:-1])  # all dimensions of the batch as one
    results: list = [None, None, None]
    if mask[0]:
        features = tuple(range(1, rows.ndim))
        result = product(rows, jnp.conj(weight), (features, tuple(range(rows.ndim - 1))))
        results[0] = result.reshape(x.shape).astype(outs[0].dtype)
    if mask[1]:
        results[1] = product(rows, jnp.conj(x.reshape(-1, x.shape[-1])), ((0,), (0,))).astype(outs[1].dtype)
    if mask[2]:
        results[2] = rows.astype(opmath(rows.dtype)).sum(0).astype(outs[2].dtype)
    return results


def int_mm(out, x, y):
    return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.dtype(np.int32))


def trilinear(out, x, y, z, expand1, expand2, expand3, sumdim, _unroll_dim=1):
    """The sum over ``sumdim`` of the product of three arrays, each with dimensions of size 1 put in."""
    ndim = x.ndim + len(expand1)
    axes = [[d for d in range(ndim) if d not in {e % ndim for e in expand}] for expand in (expand1, expand2, expand3)]
    kept = [d for d in range(ndim) if d not in {s % ndim for s in sumdim}]
    result = jnp.einsum(x, axes[0], y, axes[1], z, axes[2], kept, precision=lax.Precision.HIGHEST, preferred_element_type=opmath(x.dtype))
    return result.reshape(out.shape).astype(out.dtype)


TABLE = {
    "mm.default": lowering(plain(_mm)),
    "mm.dtype": lowering(plain(_mm)),
    "bmm.default": lowering(plain(_bmm)),
    "bmm.dtype": lowering(plain(_bmm)),
    "mv.default": lowering(plain(_mv)),
    "dot.default": lowering(plain(_dot)),
    "vdot.default": lowering(vdot),
    "addmm.default": lowering(added(_mm)),
    "addmm.dtype": lowering(added(_mm)),
    "baddbmm.default": lowering(added(_bmm)),
    "baddbmm.dtype": lowering(added(_bmm)),
    "addbmm.default": lowering(added(_addbmm)),
    "addmv.default": lowering(added(_mv)),
    "addr.default": lowering(addr),
    "_addmm_activation.default": lowering(addmm_activation),
    "linear.default": lowering(linear),
    "linear_backward.default": lowering(linear_backward),
    "_int_mm.default": lowering(int_mm),
    "_trilinear.default": lowering(trilinear),
}
