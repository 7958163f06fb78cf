"""How the operands of a recorded operation appear in the key that identifies it.

A key must be exact: two calls have equal keys only if they are the same operation on the same values. Python's own
equality is not: ``1 == 1.0 == True``, ``0.0 == -0.0``, ``nan != nan``, and an SSA index is an ``int`` too. So
tensors are :class:`Ref` objects (equal by identity), and what Python would confuse is preceded by a mark.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import torch


class Mark:
    """A unique object in a key or a recorded argument, printed by its name."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Ref:
    """The SSA value with this index in the trace."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def __repr__(self) -> str:
        return f"%{self.index}"


class HostScalar:
    """A 0-dim CPU tensor among the operands: an input of the program, read when the operation is recorded."""

    __slots__ = ("dtype",)
    _made: ClassVar[dict[torch.dtype, HostScalar]] = {}

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"host scalar {self.dtype}"

    @classmethod
    def of(cls, dtype: torch.dtype) -> HostScalar:
        """The one object of a dtype, so that it may stand in a key."""
        found = cls._made.get(dtype)
        if found is None:
            found = cls._made[dtype] = cls(dtype)
        return found


FLOAT, BITS, COMPLEX, TRUE, FALSE, LIST, KEYWORD = map(Mark, ("float", "bits", "complex", "True", "False", "list", "keyword"))
DEFAULT = Mark("default dtype")
LIFTED_FLOAT, LIFTED_INT = Mark("lifted float"), Mark("lifted int")

_refs: list[Ref] = [Ref(i) for i in range(1024)]


def ref(index: int) -> Ref:
    """The one Ref object of an index."""
    while index >= len(_refs):
        _refs.append(Ref(len(_refs)))
    return _refs[index]


def add_constant(key: list[Any], value: Any) -> None:
    """Appends a constant to a key, by type and bits."""
    kind = type(value)
    if kind is int or kind is str or value is None:
        key.append(value)
    elif kind is float:
        if value == 0.0 or value != value:  # 0.0 equals -0.0, nan equals nothing
            key.append(BITS)
            key.append(struct.pack("<d", value))
        else:
            key.append(FLOAT)
            key.append(value)
    elif kind is bool:
        key.append(TRUE if value else FALSE)
    elif kind is list or kind is tuple or kind is torch.Size:
        key.append(LIST)
        key.append(len(value))
        for item in value:
            add_constant(key, item)
    elif kind is complex:
        key.append(COMPLEX)
        key.append(struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        key.append(value)
    else:
        plain = plain_number(value)
        if plain is None:
            raise TypeError(f"can't record an argument of type {kind.__name__}: {value!r}")
        add_constant(key, plain)


_PLAIN: tuple[type, ...] = (bool, int, float, complex)


def plain_number(value: Any) -> bool | int | float | complex | None:
    """A number of a type that only looks like Python's own (``numpy.float32``, ``IntEnum``) as Python's own; else None."""
    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)
    item = getattr(value, "item", None)
    return plain_number(item()) if callable(item) and getattr(value, "ndim", None) == 0 else None
