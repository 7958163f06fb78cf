"""What is known of a value without running the program."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surestep.lint.program import Class, Function

# What a value may be; several can hold, since a name may hold one thing or another.
XLA = "on the XLA device"
MAYBE = "computed from something on the XLA device by a function that isn't known"
TENSOR = "tensor"
MODULE = "module"
OPTIMIZER = "optimizer"
LOADER = "data loader"
DEVICE_LOADER = "loader that makes a boundary a batch"
REPLICATED = "wrapped so that gradients are reduced in backward"
SCALER = "gradient scaler"
COMPILED = "compiled step"
PROGRESS = "progress bar"
XLA_DEVICE = "XLA device"
OTHER_DEVICE = "another device"
RANK = "number of this replica"
MASTER = "condition on the number of this replica"
COUNTER = "number that changes from step to step"
DATA = "number that depends on data"
LOCAL = "number read from this replica's tensors"
SAME = "the same on every replica"
BOOLEAN = "boolean tensor"

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value: what it may be, and which known thing it is."""

    tags: frozenset[str] = _NOTHING
    name: str | None = None  # the qualified name of what was imported, or of a builtin
    functions: tuple[Function, ...] = ()  # functions of this file
    classes: tuple[Class, ...] = ()  # classes of this file
    instances: tuple[Class, ...] = ()  # it is an object of one of these classes
    text: str | None = None  # a string's constant beginning
    items: tuple[Value, ...] | None = field(default=None, compare=False)
    origins: tuple[ast.Call, ...] = ()  # the calls that made the data loader

    def __contains__(self, tag: str) -> bool:
        return tag in self.tags

    def having(self, *tags: str) -> Value:
        """With these tags too."""
        return self if self.tags.issuperset(tags) else replace(self, tags=self.tags.union(tags))

    def without(self, *tags: str) -> Value:
        """Without these tags."""
        return self if self.tags.isdisjoint(tags) else replace(self, tags=self.tags.difference(tags))

    def join(self, other: Value) -> Value:
        """What is known where it may be either."""
        if self is other or other is UNKNOWN:
            return self
        if self is UNKNOWN:
            return other
        return Value(
            self.tags | other.tags,
            self.name or other.name,
            _both(self.functions, other.functions),
            _both(self.classes, other.classes),
            _both(self.instances, other.instances),
            self.text or other.text,
            self.items if self.items is not None else other.items,
            _both(self.origins, other.origins),
        )

    @property
    def device_tags(self) -> frozenset[str]:
        """What it says when it is used as a device."""
        found = self.tags & {XLA_DEVICE, OTHER_DEVICE}
        if self.text is not None and not found:
            kind = self.text.partition(":")[0]
            return frozenset((XLA_DEVICE,) if kind == "xla" else (OTHER_DEVICE,) if kind in ("cpu", "cuda", "mps") else ())
        return found


UNKNOWN = Value()


def _both(one: tuple, other: tuple) -> tuple:
    return one if one == other or not other else (*one, *(item for item in other if item not in one))


def merged(values: list[Value]) -> Value:
    """What is known of a value that is one of these."""
    result = UNKNOWN
    for value in values:
        result = result.join(value)
    return result
