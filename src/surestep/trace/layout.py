"""How a tensor lies over its storage: sizes, strides, offset and dtype, as PyTorch says.

Layouts are interned: equal ones are one object while it lives, so a layout is its own cheap hash key, and "this tensor is its
whole storage" is one identity test.
"""

from __future__ import annotations

import math
import weakref

import torch


class Layout:
    """Sizes, strides, offset and dtype. Made by ``layout()`` only, which gives the one object of these figures; never changed."""

    __slots__ = ("__weakref__", "contiguous", "dense", "dtype", "inexact", "numel", "offset", "sizes", "strides")

    sizes: torch.Size
    strides: tuple[int, ...]
    offset: int  # in elements of dtype
    dtype: torch.dtype
    inexact: bool  # whether the dtype is a floating-point or complex one
    numel: int
    contiguous: bool  # row-major from offset 0
    dense: bool  # a permutation of a contiguous layout: it covers numel elements from offset 0, each once

    def __repr__(self) -> str:
        return f"Layout({list(self.sizes)}, strides={list(self.strides)}, offset={self.offset}, {self.dtype})"

    @property
    def span(self) -> int:
        """The number of storage elements that the layout reaches over, from the storage's start."""
        return 0 if self.numel == 0 else 1 + self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def meets(self, other: Layout) -> bool:
        """Whether the bytes that two layouts of one storage reach over, from the first to the last, have one in common."""
        size, others = self.dtype.itemsize, other.dtype.itemsize
        return max(self.offset * size, other.offset * others) < min(self.span * size, other.span * others)


_interned: weakref.WeakValueDictionary[tuple, Layout] = weakref.WeakValueDictionary()


def layout(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, dtype: torch.dtype) -> Layout:
    """The one layout object of these figures."""
    key = (tuple(sizes), tuple(strides), offset, dtype)
    found = _interned.get(key)
    if found is None:
        found = Layout()
        found.sizes, found.strides, found.offset, found.dtype = torch.Size(sizes), key[1], offset, dtype
        found.numel, found.inexact = math.prod(sizes), dtype.is_floating_point or dtype.is_complex
        found.contiguous = offset == 0 and (found.numel == 0 or _is_row_major(sizes, strides))
        found.dense = found.contiguous or (offset == 0 and _is_permuted(sizes, strides))
        _interned[key] = found
    return found


def of_tensor(tensor: torch.Tensor) -> Layout:
    """The layout that PyTorch's own figures of a tensor give."""
    return layout(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)  # type: ignore[arg-type] (an int: no size here is symbolic)


def flat(numel: int, dtype: torch.dtype) -> Layout:
    """One row of ``numel`` elements: what a storage is when no tensor covers it whole."""
    return layout((numel,), (1,), 0, dtype)


def memory_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """The dimensions from the slowest to the fastest in memory (ties keep their order; size-1 dimensions don't matter)."""
    return sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))


def _is_row_major(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _is_permuted(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    order = [dim for dim in memory_order(sizes, strides) if sizes[dim] != 1]
    return _is_row_major(tuple(sizes[dim] for dim in order), tuple(strides[dim] for dim in order))
