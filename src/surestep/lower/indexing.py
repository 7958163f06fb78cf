"""Reads and writes at positions that tensors give: gather, scatter, advanced indexing, masks."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from surestep.lower.shared import axis_of, from_front, high, low, opmath
from surestep.lower.spec import lowering, number


def _at_least_1d(*arrays):
    return [a.reshape(1) if a.ndim == 0 else a for a in arrays]


def gather(out, x, dim, index, *, sparse_grad=False):
    if index.size == 0:  # it may have any number of dimensions
        return jnp.zeros(out.shape, out.dtype)
    axis = axis_of(dim, x.ndim)
    x, index = _at_least_1d(x, index)
    x = x[tuple(slice(None) if d == axis else slice(index.shape[d]) for d in range(x.ndim))]
    return jnp.take_along_axis(x, from_front(index, x.shape[axis]), axis, mode="fill").reshape(out.shape)


def _positions(dim, index, shape):
    """An index along ``dim`` of an array of ``shape`` as one index per dimension: what ``.at`` takes."""
    axis = axis_of(dim, index.ndim)
    index = from_front(index, shape[axis])
    return tuple(
        index if d == axis else jnp.arange(n).reshape([-1 if d == e else 1 for e in range(index.ndim)]) for d, n in enumerate(index.shape)
    )


def _added(at, source):
    """``at.add``; for bools, which XLA doesn't add, the or that PyTorch makes of it."""
    return at.max(source, mode="drop") if source.dtype == np.bool_ else at.add(source, mode="drop")


def _multiplied(at, source):
    return at.min(source, mode="drop") if source.dtype == np.bool_ else at.multiply(source, mode="drop")


_REDUCTIONS = {
    "sum": (_added, lambda dtype: 0),
    "mean": (_added, lambda dtype: 0),
    "prod": (_multiplied, lambda dtype: 1),
    "amax": (lambda at, source: at.max(source, mode="drop"), low),
    "amin": (lambda at, source: at.min(source, mode="drop"), high),
}


def _reduced(x, positions, source, reduce, include_self):
    """``source`` reduced into ``x``; without ``include_self`` every position written to starts from the neutral element."""
    dtype = opmath(x.dtype)
    combine, neutral = _REDUCTIONS[reduce]
    wide = x.astype(dtype)
    if not include_self:
        wide = wide.at[positions].set(neutral(dtype), mode="drop")
    result = combine(wide.at[positions], source.astype(dtype))
    if reduce == "mean":
        counts = jnp.full(x.shape, 1 if include_self else 0, np.int64).at[positions].add(1, mode="drop")
        counts = jnp.maximum(counts, 1).astype(dtype)
        result = result / counts if jnp.issubdtype(dtype, np.inexact) else result // counts
    return result.astype(x.dtype)


def _scatter(combine):
    """A scatter along a dimension: ``combine(array.at[positions], source)``."""

    def scatter(out, x, dim, index, source, *, reduce=None):
        if index.size == 0:
            return x
        flat, index = _at_least_1d(x, index)
        if getattr(source, "ndim", 0):
            source = source[tuple(slice(n) for n in index.shape)]
        elif hasattr(source, "reshape"):
            source = source.reshape((1,) * index.ndim)
        return combine(flat, _positions(dim, index, flat.shape), source, reduce).reshape(x.shape)

    return scatter


def _set(x, positions, source, _reduce):
    return x.at[positions].set(number(source, x.dtype), mode="drop")


def _add(x, positions, source, _reduce):
    return _reduced(x, positions, source, "sum", True)


_OLD_NAMES = {"add": "sum", "multiply": "prod"}


def _old_reduce(x, positions, source, reduce):
    """The reductions of ``scatter(reduce=...)``, where they have other names."""
    return _reduced(x, positions, number(source, x.dtype), _OLD_NAMES.get(reduce, reduce), True)


def scatter_reduce(out, x, dim, index, source, reduce, *, include_self=True):
    if index.size == 0:
        return x
    flat, index, source = _at_least_1d(x, index, source)
    source = source[tuple(slice(n) for n in index.shape)]
    return _reduced(flat, _positions(dim, index, flat.shape), source, reduce, include_self).reshape(x.shape)


def _key(indices):
    """PyTorch's list of indices as NumPy's: both put the indexed dimensions first where the indices aren't neighbours."""
    return tuple(slice(None) if i is None else i.astype(np.bool_) if i.dtype == np.uint8 else i for i in indices)


def index(out, x, indices):
    return x.at[_key(indices)].get(mode="fill")


def _is_mask(value):
    return value is not None and value.dtype in (np.bool_, np.uint8)


def _masked_values(x, mask, at, values):
    """For ``x[:, mask] = values`` with the mask at dimension ``at``: the mask and the values over all of ``x``.

    ``values`` broadcasts to (before, count, after), where count is how many the mask picks: if it has a value for each, they
    are read by rank among the picked.
    """
    after = x.ndim - at - mask.ndim
    values = values.reshape((1,) * (at + 1 + after - values.ndim) + values.shape)
    if values.shape[at] == 1:
        spread = values.reshape(*values.shape[:at], *(1,) * mask.ndim, *values.shape[at + 1 :])
    else:
        rank = jnp.cumsum(mask.reshape(-1)) - 1
        spread = jnp.take(values, rank, axis=at, mode="clip")
        spread = spread.reshape(*values.shape[:at], *mask.shape, *values.shape[at + 1 :])
    return mask.reshape(*mask.shape, *(1,) * after), spread


def _without_masks(indices):
    """Masks beside integer indices as integer indices; how many they pick is what the others have."""
    sizes = [i.shape[-1] for i in indices if i is not None and not _is_mask(i) and i.ndim and i.shape[-1] != 1]
    plain = []
    for i in indices:
        plain.extend(jnp.nonzero(i, size=sizes[0] if sizes else None) if _is_mask(i) else [i])
    return plain


def index_put(out, x, indices, values, accumulate=False, _unsafe=False):
    masks = [i for i in indices if i is not None]
    if x.size == 0:
        return x
    if len(masks) == 1 and _is_mask(masks[0]):
        at = next(d for d, i in enumerate(indices) if i is not None)
        mask, values = _masked_values(x, masks[0].astype(np.bool_), at, values)
        values = values.astype(x.dtype)
        return jnp.where(mask, x + values if accumulate else values, x)
    key = _key(_without_masks(indices))
    if not accumulate:
        return x.at[key].set(values.astype(x.dtype), mode="drop")
    dtype = opmath(x.dtype)
    return _added(x.astype(dtype).at[key], values.astype(dtype)).astype(x.dtype)


def unsafe_masked_index(out, x, mask, indices, fill):
    values = x.at[_key([None if i is None else jnp.where(mask, i, 0) for i in indices])].get(mode="fill")
    return jnp.where(mask, values, number(fill, x.dtype))


def unsafe_masked_index_put_accumulate(out, x, mask, indices, values):
    key = _key([None if i is None else jnp.where(mask, i, 0) for i in indices])
    return _added(x.at[key], jnp.where(mask, values, jnp.zeros_like(values)))


def index_select(out, x, dim, index):
    x, flat = _at_least_1d(x, index)
    axis = axis_of(dim, x.ndim)
    return jnp.take(x, from_front(flat, x.shape[axis]), axis=axis, mode="fill").reshape(out.shape)


def _rows(x, dim, index):
    """Operands of the ``index_*`` writes: at least 1-d, and the position of the indexed rows."""
    x, index = _at_least_1d(x, index)
    axis = axis_of(dim, x.ndim)
    return x, (slice(None),) * axis + (from_front(index, x.shape[axis]),), index


def index_add(out, x, dim, index, source, *, alpha=1):
    flat, key, index = _rows(x, dim, index)
    (source,) = _at_least_1d(source)
    dtype = opmath(x.dtype)
    source = source.astype(dtype) * number(alpha, dtype)
    return _added(flat.astype(dtype).at[key], source).astype(x.dtype).reshape(x.shape)


def index_copy(out, x, dim, index, source):
    flat, key, index = _rows(x, dim, index)
    (source,) = _at_least_1d(source)
    return flat.at[key].set(source, mode="drop").reshape(x.shape)


def index_fill(out, x, dim, index, value):
    flat, index = _at_least_1d(x, index)  # it alone may count from the end
    key = (slice(None),) * axis_of(dim, flat.ndim) + (index,)
    return flat.at[key].set(number(value, x.dtype), mode="drop").reshape(x.shape)


def index_reduce(out, x, dim, index, source, reduce, *, include_self=True):
    flat, key, index = _rows(x, dim, index)
    (source,) = _at_least_1d(source)
    return _reduced(flat, key, source, reduce, include_self).reshape(x.shape)


def take(out, x, index):
    return jnp.take(x.reshape(-1), index, mode="fill")


def put(out, x, index, source, accumulate=False):
    at = x.reshape(-1).at[index.reshape(-1)]
    source = source.reshape(-1)
    return (_added(at, source) if accumulate else at.set(source, mode="drop")).reshape(x.shape)


def masked_scatter(out, x, mask, source):
    """The n-th element that the mask picks becomes the n-th of ``source``."""
    mask = jnp.broadcast_to(mask, out.shape).reshape(-1)
    x = jnp.broadcast_to(x, out.shape).reshape(-1)
    if source.size == 0 or x.size == 0:
        return x.reshape(out.shape)
    values = jnp.take(source.reshape(-1), jnp.cumsum(mask) - 1, mode="clip")
    return jnp.where(mask, values, x).reshape(out.shape)


def masked_scatter_backward(out, grad, mask, sizes):
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    size = int(np.prod(out.shape))
    target = jnp.where(mask, jnp.cumsum(mask) - 1, size)
    return jnp.zeros((size,), grad.dtype).at[target].set(grad.reshape(-1), mode="drop").reshape(out.shape)


def nonzero_static(out, x, *, size, fill_value=-1):
    if x.size == 0 or x.ndim == 0:
        return jnp.full(out.shape, fill_value, out.dtype)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), axis=1).astype(out.dtype)


TABLE = {
    "gather.default": lowering(gather),
    "scatter.src": lowering(_scatter(_set)),
    "scatter.value": lowering(_scatter(_set)),
    "scatter.reduce": lowering(_scatter(_old_reduce)),
    "scatter.value_reduce": lowering(_scatter(_old_reduce)),
    "scatter_add.default": lowering(_scatter(_add)),
    "scatter_reduce.two": lowering(scatter_reduce),
    "index.Tensor": lowering(index),
    "_unsafe_index.Tensor": lowering(index),
    "index_put.default": lowering(index_put),
    "_unsafe_index_put.default": lowering(index_put),
    "_index_put_impl.default": lowering(index_put),
    "_unsafe_masked_index.default": lowering(unsafe_masked_index),
    "_unsafe_masked_index_put_accumulate.default": lowering(unsafe_masked_index_put_accumulate),
    "index_select.default": lowering(index_select),
    "index_add.default": lowering(index_add),
    "index_copy.default": lowering(index_copy),
    "index_fill.int_Scalar": lowering(index_fill),
    "index_fill.int_Tensor": lowering(index_fill),
    "index_reduce.default": lowering(index_reduce),
    "take.default": lowering(take),
    "put.default": lowering(put),
    "masked_scatter.default": lowering(masked_scatter),
    "masked_scatter_backward.default": lowering(masked_scatter_backward),
    "nonzero_static.default": lowering(nonzero_static),
}
