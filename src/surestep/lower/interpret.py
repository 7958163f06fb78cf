"""From the records of a trace to one function over JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from surestep.execute import dtypes
from surestep.lower import strided
from surestep.lower.spec import Out
from surestep.lower.table import lowerings
from surestep.trace.layout import Layout
from surestep.trace.operands import LIFTED_FLOAT, LIFTED_INT, HostScalar, Ref
from surestep.trace.records import Call, Empty, Leaf, Read, Record, Seed, Write


class LoweringError(RuntimeError):
    """A lowering is wrong: it gave another shape or dtype than PyTorch, or raised. Ours, never the user's fault."""


def interpreted(records: Sequence[Record], outputs: Sequence[int]) -> Callable[..., list[Any]]:
    """``function(floats, ints, *leaves)`` that gives the values with the SSA indices ``outputs``."""

    def program(floats: Any, ints: Any, *leaves: Any) -> list[Any]:
        return _Run(floats, ints, leaves).outputs(records, outputs)

    return program


class _Run:
    """One pass over the records. Lifted numbers and leaves come in the order in which they were recorded."""

    def __init__(self, floats: Any, ints: Any, leaves: Sequence[Any]):
        self.floats: Iterator[Any] = (floats[i] for i in range(floats.shape[0]))
        self.ints: Iterator[Any] = (ints[i] for i in range(ints.shape[0]))
        self.leaves = iter(leaves)
        self.values: list[Any] = []

    def outputs(self, records: Sequence[Record], outputs: Sequence[int]) -> list[Any]:
        for record in records:
            self.values.extend(self.run(record))
        return [self.values[index] for index in outputs]

    def run(self, record: Record) -> Sequence[Any]:
        if isinstance(record, Call):
            return self.call(record)
        if isinstance(record, Leaf):
            return (next(self.leaves),)
        if isinstance(record, Read):
            offset = self.operand(record.offset)
            return (strided.read(self.values[record.value.index], record.storage, record.view, offset),)
        if isinstance(record, Write):
            offset = self.operand(record.offset)
            value, new = self.values[record.value.index], self.values[record.new.index]
            return (strided.write(value, new, record.storage, record.view, offset),)
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
        if isinstance(operand, list):
            return [self.operand(item) for item in operand]
        return operand

    def host_scalar(self, dtype: Any) -> Any:
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return jax.lax.complex(next(self.floats), next(self.floats)).astype(dtype)
        return next(self.floats if jnp.issubdtype(dtype, jnp.floating) else self.ints).astype(dtype)

    def call(self, record: Call) -> Sequence[Any]:
        arguments = [self.operand(a) for a in record.arguments]
        keywords = {name: self.operand(a) for name, a in record.keywords.items()}
        if record.draw is not None:
            keywords["key"] = self.key(*record.draw)
        outs = tuple(_expected(layout) for layout in record.outputs)
        name = str(record.operation).removeprefix("aten.")
        try:
            result = lowerings()[name].function(outs[0] if record.single else outs, *arguments, **keywords)
        except Exception as error:
            error.add_note(f"while lowering {name} (surestep's own lowering: please report it)")
            raise
        results = [result] if record.single else list(result)
        return [_checked(name, result, out, record.cast) for result, out in zip(results, outs, strict=True)]

    def key(self, seed: Ref, draw: int) -> Any:
        """The key of one draw: a function of the seed and of how many draws came before it, never of where a boundary falls."""
        start, offset = self.values[seed.index].astype(jnp.uint64)
        words = jnp.stack([start >> 32, start & 0xFFFFFFFF]).astype(jnp.uint32)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        count = offset + jnp.uint64(draw)
        for half in (count >> 32, count & 0xFFFFFFFF):
            key = jax.random.fold_in(key, half.astype(jnp.uint32))
        return key


def _expected(layout: Layout | None) -> Out | None:
    return None if layout is None else Out(tuple(layout.sizes), dtypes.to_jax(layout.dtype))


def _checked(name: str, result: Any, out: Out | None, cast: bool) -> Any:
    if out is None:
        return None
    if cast and result.dtype != out.dtype:
        result = result.real if jnp.iscomplexobj(result) and not jnp.issubdtype(out.dtype, jnp.complexfloating) else result
        result = result.astype(out.dtype)
    if cast and result.shape != out.shape:
        result = jnp.broadcast_to(result, out.shape)
    if result.shape != out.shape or result.dtype != out.dtype:
        raise LoweringError(
            f"the lowering of {name} gave {result.dtype}{list(result.shape)} where PyTorch has {out.dtype}{list(out.shape)}: a fault of surestep's, please report it"
        )
    return result
