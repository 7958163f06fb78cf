"""Products whose operands come in groups or with scales: mixtures of experts, and matrices of eight-bit floats."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from surestep.lower.matmul import product
from surestep.lower.shared import widened
from surestep.lower.spec import lowering

_TENSORWISE, _ROWWISE = 0, 1  # torch.nn.functional.ScalingType
_ROWS_OF_BOTH = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])


def _ragged(x, y, ends, kind=None):
    """Rows of ``x`` in groups, which end at ``ends``, each times the matrix of its group; what is in no group is zero."""
    x, y, sizes = widened(x), widened(y), jnp.diff(ends, prepend=0)
    precision = lax.Precision.HIGHEST
    return lax.ragged_dot(x, y, sizes, precision) if kind is None else lax.ragged_dot_general(x, y, sizes, kind, precision)


def grouped_mm(out, x, y, offs=None, bias=None, _out_dtype=None):
    if bias is not None:
        raise NotImplementedError("a bias")
    if offs is None:
        result = product(x, y, ((2,), (1,)), ((0,), (0,)))
    elif x.ndim == 2 and y.ndim == 3:
        result = _ragged(x, y, offs)
    elif x.ndim == 3:
        result = _ragged(y.T, x.mT, offs).T
    else:
        result = _ragged(x.T, y, offs, _ROWS_OF_BOTH)
    return result.astype(out.dtype)


def scaled_mm(out, x, y, scale_x, scale_y, bias=None, scale_result=None, _out_dtype=None, _use_fast_accum=False):
    if scale_result is not None or out.dtype.itemsize == 1:
        raise NotImplementedError("a result of eight bits")
    result = product(x.astype(jnp.float32), y.astype(jnp.float32), ((1,), (0,)))
    result = result * scale_x.reshape(-1, 1) * scale_y.reshape(1, -1)
    return (result if bias is None else result + bias.astype(jnp.float32)).astype(out.dtype)


def scaled_mm_v2(
    out, x, y, scale_x, recipe_x, _swizzle_x, scale_y, recipe_y, _swizzle_y, bias, _out_dtype, _contraction_dim=(), _use_fast_accum=False
):
    if not {*recipe_x, *recipe_y} <= {_TENSORWISE, _ROWWISE}:
        raise NotImplementedError("scales of blocks")
    return scaled_mm(out, x, y, scale_x[0], scale_y[0], bias)


TABLE = {
    "_grouped_mm.default": lowering(grouped_mm),
    "_scaled_mm.default": lowering(scaled_mm),
    "_scaled_mm_v2.default": lowering(scaled_mm_v2),
}
