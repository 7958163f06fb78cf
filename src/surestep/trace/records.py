"""What a trace is made of: one record an edge of the trie, plain data that the lowering reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from surestep.trace.layout import Layout
from surestep.trace.operands import Mark, Ref


class Leaf(NamedTuple):
    """An array that a storage held before the trace, in the storage's own layout."""

    layout: Layout
    results: int = 1


class Empty(NamedTuple):
    """Memory that was never written: zeros."""

    layout: Layout
    results: int = 1


class Seed(NamedTuple):
    """A generator's seed and offset, as two lifted integers: what the random operations after it draw from."""

    results: int = 1


class Call(NamedTuple):
    """An ATen operation. ``arguments`` hold Refs, lifted marks, HostScalars and constants, nested in lists."""

    operation: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[Layout | None, ...]  # flat; None where PyTorch returns no tensor
    single: bool  # one tensor, not a tuple of one
    cast: bool  # an in-place result: brought to the output's dtype and shape
    draw: tuple[Ref, int] | None  # random operations: the seed's value and which draw after it this is
    body: Any  # the lowering, traced for these operands: a jaxpr over the dynamic ones in their order, then the key
    results: int


class Read(NamedTuple):
    """A view's elements out of its storage's value. The offset may be lifted."""

    value: Ref
    storage: Layout
    view: Layout
    offset: int | Mark
    results: int = 1


class Write(NamedTuple):
    """A storage's value after a view of it was overwritten. The offset may be lifted."""

    value: Ref
    new: Ref
    storage: Layout
    view: Layout
    offset: int | Mark
    results: int = 1


Record = Leaf | Empty | Seed | Call | Read | Write
