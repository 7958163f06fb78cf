"""What a trace is made of: one record an edge of the trie, plain data that the lowering reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from surestep.trace.layout import Layout
from surestep.trace.operands import LIFTED_FLOAT, LIFTED_INT, HostScalar, Mark, Ref


class Leaf(NamedTuple):
    """An array that a storage held before the trace, in the storage's own layout; with a mesh, the parts of its devices, stacked."""

    layout: Layout
    mesh: Any = None
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

    operation: torch._ops.OpOverload | str
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


class Collective(NamedTuple):
    """What all processes do together. ``options`` are constants; ``scale`` is LIFTED_FLOAT where the results are multiplied.

    It begins when the values ``after`` have been computed, of which it is no function.
    """

    name: str
    operands: tuple[Ref, ...]
    after: tuple[Ref, ...]
    options: tuple[Any, ...]
    outputs: tuple[Layout, ...]
    scale: Mark | None
    results: int


class Constrain(NamedTuple):
    """A value, which from here on lies over the devices as the sharding says."""

    value: Ref
    sharding: Any
    layout: Layout  # of the result
    results: int = 1


class Part(NamedTuple):
    """From here on each device has its own part of a value, as the sharding splits it."""

    value: Ref
    sharding: Any
    layout: Layout  # of the result
    results: int = 1


class Join(NamedTuple):
    """The value whose parts the devices have, as the sharding splits it."""

    value: Ref
    sharding: Any
    layout: Layout  # of the result
    results: int = 1


class Alike(NamedTuple):
    """Two values of one shape that from here on lie over the devices in the same way, whichever XLA chooses."""

    values: tuple[Ref, Ref]
    outputs: tuple[Layout, Layout]
    results: int = 2


Record = Leaf | Empty | Seed | Call | Read | Write | Collective | Constrain | Part | Join | Alike


def needs(record: Record) -> tuple[int, int, int]:
    """How many leaves, floats and ints of the trace a record takes."""
    if isinstance(record, Leaf):
        return 1, 0, 0
    if isinstance(record, Seed):
        return 0, 0, 2
    if isinstance(record, (Read, Write)):
        return 0, 0, int(record.offset is LIFTED_INT)
    if isinstance(record, Call):
        found = [_numbers(operand) for operand in (*record.arguments, *record.keywords.values())]
        return 0, sum(floats for floats, _ in found), sum(ints for _, ints in found)
    if isinstance(record, Collective):
        return 0, int(record.scale is not None), 0
    return 0, 0, 0


def _numbers(operand: Any) -> tuple[int, int]:
    if isinstance(operand, list):
        found = [_numbers(item) for item in operand]
        return sum(floats for floats, _ in found), sum(ints for _, ints in found)
    if operand is LIFTED_FLOAT:
        return 1, 0
    if operand is LIFTED_INT:
        return 0, 1
    if isinstance(operand, HostScalar):
        return (2, 0) if operand.dtype.is_complex else (1, 0) if operand.dtype.is_floating_point else (0, 1)
    return 0, 0
