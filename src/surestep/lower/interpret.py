"""From the records of a trace to one function over JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.shard_alike import shard_alike

from surestep.execute import dtypes
from surestep.execute.devices import device_kind
from surestep.lower import collective, manual, strided
from surestep.lower.overlap import overlapping
from surestep.trace.nested import Nested
from surestep.trace.operands import LIFTED_FLOAT, LIFTED_INT, HostScalar, Mark, Ref
from surestep.trace.records import Alike, Call, Collective, Constrain, Empty, Join, Leaf, Part, Read, Record, Seed, Write


def interpreted(records: Sequence[Record], outputs: Sequence[int]) -> Callable[..., list[Any]]:
    """``function(floats, ints, *leaves)`` that gives the values with the SSA indices ``outputs``."""

    def program(floats: Any, ints: Any, *leaves: Any) -> list[Any]:
        return _Run(records, floats, ints, leaves).outputs(records, outputs)

    return program


def evaluated(nested: Nested, numbers: Iterable[int], leaves: Sequence[Any], values: list[Any], floats: Any, ints: Any) -> list[Any]:
    """The values of some records of a trace, put among ``values``; all leaves, floats and ints are those of the whole trace."""
    run = _Run(nested.records, floats, ints, ())
    run.values = values
    for number in numbers:
        record, at, end = nested.records[number], nested.positions[number], nested.positions[number + 1]
        run.leaves = iter(leaves[at.leaf : end.leaf])
        run.floats = iter([floats[place] for place in range(at.float, end.float)])
        run.ints = iter([ints[place] for place in range(at.int, end.int)])
        values[at.value : end.value] = run.run(record)
    return values


class _Run:
    """One pass over the records. Lifted numbers and leaves come in the order in which they were recorded."""

    def __init__(self, records: Sequence[Record], floats: Any, ints: Any, leaves: Sequence[Any]):
        self.overlapping = overlapping(records) if device_kind() == "CPU" else set()
        self.floats: Iterator[Any] = (floats[i] for i in range(floats.shape[0]))
        self.ints: Iterator[Any] = (ints[i] for i in range(ints.shape[0]))
        self.leaves = iter(leaves)
        self.values: list[Any] = []
        self.last = ints[-1:]
        self.chain: Any = None

    def outputs(self, records: Sequence[Record], outputs: Sequence[int]) -> list[Any]:
        if any(isinstance(record, Collective) for record in records):
            self.chain = collective.Chain(self.last[0])  # such a program has one int more
        for record in records:
            self.values.extend(self.run(record))
        found = [manual.stored(self.values[index]) for index in outputs]
        # What the processes do together is done by each of them, also where one has no use for the results.
        return found if self.chain is None else [*found, jnp.stack([jnp.float32(0), *self.chain.marks])]

    def run(self, record: Record) -> Sequence[Any]:
        if isinstance(record, Call):
            return self.call(record)
        if isinstance(record, Leaf):
            value = next(self.leaves)
            return (value if record.mesh is None else manual.Parts(value, record.mesh),)
        if isinstance(record, Read):
            value, offset = self.values[record.value.index], self.operand(record.offset)
            return manual.apply(lambda value, offset: [strided.read(value, record.storage, record.view, offset)], [value, offset])
        if isinstance(record, Write):
            operands = [self.values[record.value.index], self.values[record.new.index], self.operand(record.offset)]
            views = record.storage, record.view
            shared = id(record) in self.overlapping
            return manual.apply(lambda value, new, offset: [strided.write(value, new, *views, offset, shared)], operands)
        if isinstance(record, Collective):
            return self.together(record)
        if isinstance(record, Constrain):
            return (jax.lax.with_sharding_constraint(self.values[record.value.index], record.sharding),)
        if isinstance(record, Part):
            return (manual.parts(self.values[record.value.index], record.sharding),)
        if isinstance(record, Join):
            return (manual.whole(self.values[record.value.index], record.sharding),)
        if isinstance(record, Alike):
            return shard_alike(*(self.values[value.index] for value in record.values))
        if isinstance(record, Empty):
            return (jnp.zeros(tuple(record.layout.sizes), dtypes.to_jax(record.layout.dtype)),)
        assert isinstance(record, Seed)
        return (jnp.stack([next(self.ints), next(self.ints)]),)

    def operand(self, operand: Any) -> Any:
        if isinstance(operand, Ref):
            return self.values[operand.index]
        if operand is LIFTED_FLOAT:
            return next(self.floats)
        if operand is LIFTED_INT:
            return next(self.ints)
        if isinstance(operand, HostScalar):
            return self.host_scalar(dtypes.to_jax(operand.dtype))
        return operand

    def host_scalar(self, dtype: Any) -> Any:
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return jax.lax.complex(next(self.floats), next(self.floats)).astype(dtype)
        return next(self.floats if jnp.issubdtype(dtype, jnp.floating) else self.ints).astype(dtype)

    def call(self, record: Call) -> Sequence[Any]:
        operands: list[Any] = []
        self.dynamic(record.arguments, operands)
        self.dynamic(list(record.keywords.values()), operands)
        if record.draw is not None:
            operands.append(self.key(*record.draw))
        body = record.body
        given = iter(manual.apply(lambda *operands: jax.core.eval_jaxpr(body.jaxpr, body.consts, *operands), operands))
        return [None if layout is None else next(given) for layout in record.outputs]

    def together(self, record: Collective) -> Sequence[Any]:
        operands, after = ([self.values[value.index] for value in values] for values in (record.operands, record.after))
        scale = None if record.scale is None else next(self.floats)
        return self.chain.run(record.name, operands, record.options, scale, after)

    def dynamic(self, value: Any, operands: list[Any]) -> None:
        """Appends the arrays among an operand, in order."""
        if isinstance(value, (list, tuple)):
            for item in value:
                self.dynamic(item, operands)
        elif isinstance(value, (Ref, Mark, HostScalar)):
            operands.append(self.operand(value))

    def key(self, seed: Ref, draw: int) -> Any:
        """The key of one draw: a function of the seed and of how many draws came before it, never of where a boundary falls."""
        start, offset = self.values[seed.index].astype(jnp.uint64)
        words = jnp.stack([start >> 32, start & 0xFFFFFFFF]).astype(jnp.uint32)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        count = offset + jnp.uint64(draw % (1 << 64))  # a generator set back draws at a negative distance
        for half in (count >> 32, count & 0xFFFFFFFF):
            key = jax.random.fold_in(key, half.astype(jnp.uint32))
        return key
