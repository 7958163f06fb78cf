"""A function that was recorded as a trace of its own: plain data, from which the lowering makes loops and branches.

Its leaves are, in this order: what the function is given, the storages from outside that it reads, and then, for its derivative, the
cotangents of its results and what only the derivative reads from outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from surestep.trace.layout import Layout
from surestep.trace.operands import Ref
from surestep.trace.records import Alike, Call, Collective, Constrain, Empty, Join, Leaf, Part, Read, Record, Seed, Write, needs


class Position(NamedTuple):
    """Where a record's results and inputs stand among those of the trace."""

    value: int
    leaf: int
    float: int
    int: int


class Nested(NamedTuple):
    """The records of a function, ``split`` of them, and then those of its derivative, if there is one."""

    records: Sequence[Record]
    positions: Sequence[Position]  # of each record, and of their end
    split: int
    inputs: int  # leaves that are what the function is given
    captured: int  # leaves that the function reads from outside
    outputs: tuple[int, ...]  # values of the results
    gradients: tuple[int | None, ...]  # values of the derivative's results; None: zero
    draws: tuple[int, ...]  # of each seed, how often it is drawn from

    @property
    def values(self) -> int:
        """How many values there are."""
        return self.positions[-1].value

    def seeds(self) -> list[int]:
        """Where the seeds stand among the ints; the offset follows each."""
        return [at.int for record, at in zip(self.records, self.positions, strict=False) if isinstance(record, Seed)]

    def leaf_values(self) -> list[int]:
        """The value of each leaf."""
        return [at.value for record, at in zip(self.records, self.positions, strict=False) if isinstance(record, Leaf)]


def positions(records: Sequence[Record]) -> list[Position]:
    """Where each record stands, and where their end is."""
    steps = ((record.results, *needs(record)) for record in records)
    return [Position(*each) for each in itertools.accumulate(steps, lambda a, b: tuple(map(sum, zip(a, b, strict=True))), initial=(0,) * 4)]


def operands(record: Record) -> Iterator[int]:
    """The values that a record takes."""
    if isinstance(record, Call):
        yield from _indices((record.arguments, list(record.keywords.values()), record.draw))
    elif isinstance(record, (Read, Constrain, Part, Join)):
        yield record.value.index
    elif isinstance(record, Write):
        yield record.value.index
        yield record.new.index
    elif isinstance(record, Collective):
        yield from _indices(record.operands)
    elif isinstance(record, Alike):
        yield from _indices(record.values)


def _indices(value: Any) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _indices(item)


def layout_of(record: Record, result: int) -> Layout | None:
    """The layout of one of a record's results; None for a seed, two 64-bit integers."""
    if isinstance(record, (Leaf, Empty, Constrain, Part, Join)):
        return record.layout
    if isinstance(record, Read):
        return record.view
    if isinstance(record, Write):
        return record.storage
    return None if isinstance(record, Seed) else record.outputs[result]


class Kept(NamedTuple):
    """What of one run of the function its derivative needs, and how it comes by it."""

    values: tuple[int, ...]  # kept for it
    again: tuple[int, ...]  # records of the function that are run again with the derivative
    always: tuple[int, ...]  # records whose results are the same in each round, run once for all
    inputs: tuple[int, ...]  # which of the inputs behind the carries it needs
    captured: tuple[int, ...]  # which of the leaves that the function captures it needs


NOTHING = Kept((), (), (), (), ())


def kept_values(nested: Nested, carries: int, anew: bool) -> Kept:
    """What PyTorch's derivative reads of what the function computed: that is kept. Or, ``anew``, only carries, from which it is computed.

    Not kept is what each round has anyhow (all that the function is given but its first ``carries`` inputs), what is the same in all
    rounds, and views, of which the value that they are views of is kept.
    """
    records, places, split = nested.records, nested.positions, nested.split
    producers = {at.value + result: number for number, at in enumerate(places[:split]) for result in range(records[number].results)}
    varying = _varying(nested)
    end = places[split].value
    waiting = {index for record in records[split:] for index in operands(record)}
    waiting.update(index for index in nested.gradients if index is not None)
    values, again, always, inputs, captured, seen = (set[int]() for _ in range(6))
    while waiting:
        index = waiting.pop()
        if index >= end or index in seen:
            continue
        seen.add(index)
        number = producers[index]
        record = records[number]
        if isinstance(record, Leaf):
            leaf = places[number].leaf
            if leaf >= nested.inputs:
                captured.add(leaf - nested.inputs)
            elif leaf >= carries:
                inputs.add(leaf)
            else:
                values.add(index)
        elif number not in varying:
            always.add(number)
            waiting.update(operands(record))
        elif anew or (isinstance(record, Read) and type(record.offset) is int):
            again.add(number)
            waiting.update(operands(record))
        else:
            values.add(index)
    return Kept(*(tuple(sorted(each)) for each in (values, again, always, inputs, captured)))


def _varying(nested: Nested) -> set[int]:
    """The records of the function whose results may differ from round to round."""
    values: set[int] = set()
    found: set[int] = set()
    for number, (record, at) in enumerate(zip(nested.records[: nested.split], nested.positions, strict=False)):
        given = isinstance(record, Leaf) and at.leaf < nested.inputs
        if given or isinstance(record, Seed) or not values.isdisjoint(operands(record)):
            found.add(number)
            values.update(range(at.value, at.value + record.results))
    return found
