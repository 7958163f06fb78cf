"""Writes into a part of a value of something that is made of the same value: ``x[1:] = x[:-1]``.

XLA's CPU compiler writes a block into its operand in place, in one loop with what computes the block, and doesn't always see that this loop
reads elements that it has already overwritten (openxla/xla issue 49176). So these writes are found here, and lowered another way.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from surestep.lower import conversion, elementary, pointwise
from surestep.trace.nested import layout_of, operands
from surestep.trace.records import Call, Leaf, Read, Record, Seed, Write

# Each element of the result is made of the elements in its place.
_POINTWISE = {*pointwise.TABLE, *elementary.TABLE, *conversion.TABLE, "fill.Scalar", "fill.Tensor", "zero.default"}


def overlapping(records: Sequence[Record]) -> set[int]:
    """The ``id`` of each such Write.

    Two values may be the same to XLA (a copy, the same made twice), so all count that have the size of what is written.
    """
    numbers = itertools.count()
    made: defaultdict[int, int] = defaultdict(lambda: next(numbers))  # what is made of nothing, by size: it may be the same
    of_size: defaultdict[int, int] = defaultdict(int)  # as bits: the values of each size
    sources: list[int] = []  # of each value, as bits: itself, and the values that it is made of
    makers: list[Record] = []
    found = set()
    for record in records:
        taken = list(operands(record))
        together = _union(sources[value] for value in taken)
        for result in range(record.results):
            size = _nbytes(layout_of(record, result))
            number = next(numbers) if taken or isinstance(record, (Leaf, Seed)) else made[size]
            of_size[size] |= 1 << number
            sources.append(together | 1 << number)
            makers.append(record)
        if isinstance(record, Write):
            elsewhere = _union(sources[value] for value in _read_elsewhere(record, makers))
            if elsewhere & sources[record.value.index] & of_size[_nbytes(record.storage)]:
                found.add(id(record))
    return found


def _read_elsewhere(write: Write, makers: Sequence[Record]) -> Iterator[int]:
    """What the new elements are made of, except for the very elements that each of them replaces: ``x[1:] += y``.

    Two offsets that are inputs of the program may differ.
    """
    maker = makers[write.new.index]
    if not (isinstance(maker, Call) and str(maker.operation).removeprefix("aten.") in _POINTWISE):
        yield write.new.index
        return
    for value in operands(maker):
        read = makers[value]
        if not (isinstance(read, Read) and isinstance(read.offset, int) and _place(read) == _place(write)):
            yield value


def _place(record: Read | Write) -> tuple[Any, ...]:
    return record.value.index, record.view, record.offset


def _nbytes(layout: Any) -> int:
    return 16 if layout is None else layout.numel * layout.dtype.itemsize


def _union(bits: Iterator[int]) -> int:
    together = 0
    for each in bits:
        together |= each
    return together
