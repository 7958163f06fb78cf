"""Views of a storage: reading one out of the storage's value, and writing one back into it.

PyTorch says of a view only its sizes, strides and offset in the flat storage. Nearly all such views are a *grid*: with the dimensions
sorted by stride, each stride divides the one before and no row overlaps the next, so that the flat storage, reshaped to the ratios of the
strides, has the view as a rectangular block. Then XLA sees reshape, slice and transpose, which it fuses. What is no grid (``unfold`` with
overlap, odd ``as_strided``) is a gather, and written back by a scatter.

The offset may be a number that the program is given at run time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.execute import dtypes
from surestep.trace.layout import Layout, memory_order


def read(value: Any, storage: Layout, view: Layout, offset: Any) -> Any:
    """The view's elements, in the view's shape and dtype. ``value`` is in the storage's shape."""
    flat = _in_dtype(_flatten(value, storage), view.dtype)
    if view.numel == 0:
        return jnp.zeros(view.sizes, flat.dtype)
    grid = _grid(view, flat.size, offset)
    if grid is None:
        return jnp.take(flat, _indices(view, offset), mode="fill")
    block = lax.slice(*_positioned(flat, grid, offset))
    return _to_view_order(block.reshape(grid.sizes), grid, view)


def write(value: Any, new: Any, storage: Layout, view: Layout, offset: Any, overlapping: bool = False) -> Any:
    """The storage's value with the view overwritten by ``new`` (of its shape and dtype), which, ``overlapping``, may be made of it."""
    flat = _in_dtype(_flatten(value, storage), view.dtype)
    if view.numel and overlapping:
        there = _written(jnp.zeros(flat.shape, np.bool_), jnp.ones(view.sizes, np.bool_), view, offset)
        flat = jnp.where(there, _written(jnp.zeros_like(flat), new, view, offset), flat)
    elif view.numel:
        flat = _written(flat, new, view, offset)
    return _unflatten(_in_dtype(flat, storage.dtype), storage)


def _written(flat: Any, new: Any, view: Layout, offset: Any) -> Any:
    grid = _grid(view, flat.size, offset)
    if grid is None:
        return flat.at[_indices(view, offset)].set(new)
    block = _from_view_order(new, grid, view).reshape(grid.extents)
    if grid.whole:
        return lax.dynamic_update_slice(flat.reshape(grid.radices), block, grid.starts).reshape(-1)
    padded = jnp.pad(flat, (0, grid.padding))
    row = lax.dynamic_slice(padded, (offset,), (grid.length,)).reshape(grid.radices)
    row = lax.dynamic_update_slice(row, block, grid.starts).reshape(-1)
    return lax.dynamic_update_slice(padded, row, (offset,))[: flat.size]


class _Grid(NamedTuple):
    """The storage as a grid, and the view as a block of it. ``dims`` are the view's dimensions that move, slowest first."""

    dims: list[int]
    sizes: list[int]
    radices: list[int]  # the grid's shape: one more dimension than dims, for what a stride above 1 skips
    starts: list[int]
    extents: list[int]
    whole: bool  # the grid is the whole storage; else it is `length` elements from the offset on, `padding` of them past its end
    length: int
    padding: int


def _grid(view: Layout, numel: int, offset: Any) -> _Grid | None:
    dims = [dim for dim in memory_order(view.sizes, view.strides) if view.sizes[dim] != 1 and view.strides[dim] != 0]
    sizes, strides = [view.sizes[dim] for dim in dims], [view.strides[dim] for dim in dims]
    if any(stride < 0 for stride in strides):
        return None
    for size, stride, above in zip(sizes[1:], strides[1:], strides, strict=False):
        if above % stride or size * stride > above:
            return None
    if not dims:
        dims, sizes, strides = [], [], []
        strides_and_unit = [1]
    else:
        strides_and_unit = [*strides, 1]
    inner = [above // below for above, below in pairwise(strides_and_unit)]
    extents = [*sizes, 1]
    outer_stride = strides_and_unit[0]
    if isinstance(offset, int) and numel % outer_stride == 0:
        radices = [numel // outer_stride, *inner] if dims else [numel]
        starts, rest = [], offset
        for stride in strides_and_unit:
            starts.append(rest // stride)
            rest %= stride
        if all(start + extent <= radix for start, extent, radix in zip(starts, extents, radices, strict=True)):
            return _Grid(dims, sizes, radices, starts, extents, True, numel, 0)
    length = outer_stride * (sizes[0] if sizes else 1)
    radices = [sizes[0], *inner] if dims else [1]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return _Grid(dims, sizes, radices, [0] * len(radices), extents, False, length, length - span)


def _positioned(flat: Any, grid: _Grid, offset: Any) -> tuple[Any, list[int], list[int]]:
    if not grid.whole:
        flat = lax.dynamic_slice(jnp.pad(flat, (0, grid.padding)), (offset,), (grid.length,))
    ends = [start + extent for start, extent in zip(grid.starts, grid.extents, strict=True)]
    return flat.reshape(grid.radices), grid.starts, ends


def _to_view_order(block: Any, grid: _Grid, view: Layout) -> Any:
    """From the moving dimensions in memory order to the view's dimensions; size 1 and stride 0 come in by broadcasting."""
    moving = sorted(grid.dims)
    block = block.transpose([grid.dims.index(dim) for dim in moving])
    return lax.broadcast_in_dim(block, view.sizes, moving)


def _from_view_order(new: Any, grid: _Grid, view: Layout) -> Any:
    """The other way round; where a stride-0 dimension writes one element many times, the last wins."""
    still = [dim for dim in range(len(view.sizes)) if dim not in grid.dims]
    new = lax.transpose(new, [*grid.dims, *still])
    return new.reshape([*grid.sizes, -1])[..., -1]


def _indices(view: Layout, offset: Any) -> Any:
    indices = offset
    for dim, (size, stride) in enumerate(zip(view.sizes, view.strides, strict=True)):
        shape = [1] * len(view.sizes)
        shape[dim] = size
        indices = indices + (np.arange(size) * stride).reshape(shape)
    return indices


def _flatten(value: Any, storage: Layout) -> Any:
    if not storage.contiguous:
        value = lax.transpose(value, memory_order(storage.sizes, storage.strides))
    return value.reshape(-1)


def _unflatten(flat: Any, storage: Layout) -> Any:
    if storage.contiguous:
        return flat.reshape(storage.sizes)
    order = memory_order(storage.sizes, storage.strides)
    return lax.transpose(flat.reshape([storage.sizes[dim] for dim in order]), [order.index(dim) for dim in range(len(order))])


def _in_dtype(flat: Any, dtype: Any) -> Any:
    """The same bytes as elements of another dtype."""
    target = dtypes.to_jax(dtype)
    if flat.dtype == target:
        return flat
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
    if jnp.issubdtype(target, jnp.complexfloating):
        half = _bits(flat, np.dtype(np.float32 if target.itemsize == 8 else np.float64)).reshape(-1, 2)
        return lax.complex(half[:, 0], half[:, 1])
    return _bits(flat, target)


def _bits(flat: Any, target: np.dtype) -> Any:
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if target == np.bool_:
        return _bits(flat, np.dtype(np.uint8)).astype(np.bool_)
    if flat.dtype == target:
        return flat
    ratio = target.itemsize // flat.dtype.itemsize
    if ratio > 1:
        flat = flat[: flat.size // ratio * ratio].reshape(-1, ratio)
    return lax.bitcast_convert_type(flat, target).reshape(-1)
