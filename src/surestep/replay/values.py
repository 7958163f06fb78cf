"""What is known of a value while a step's code is followed, without running it.

A value is *determined* if it is the same at every call for which the guards hold. All that is followed is determined; what can't be
shown to be is an error (:class:`NotReplayable`). The kinds differ in how much is known:

* :class:`Known`: this very object, which existed before the call;
* :class:`New`: made by the call: a container of known items, or a result of a computation;
* :class:`Local`: a function that the call defines;
* :class:`Either`: one of several, by a branch that was not decided: may be handed on, nothing else.
"""

from __future__ import annotations

import ast
import enum
import functools
import types
from typing import Any, NamedTuple

import torch

from surestep.parallel.mesh import HybridMesh, Mesh


class NotReplayable(Exception):
    """Why a step must run its Python again at each call: the reason, and where in the user's code."""

    def __init__(self, reason: str, file: str | None = None, line: int = 0):
        super().__init__(reason)
        self.reason = reason
        self.file = file
        self.line = line

    def locate(self, file: str | None, line: int) -> None:
        """Where it is, if that isn't said yet."""
        if self.file is None:
            self.file, self.line = file, line

    def alone(self) -> NotReplayable:
        """The same, without the frames it came through: those hold the call's tensors and graphs."""
        return NotReplayable(self.reason, self.file, self.line)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.file else self.reason


class Missing(NotReplayable):
    """There is no such attribute."""


class Known:
    """An object that existed before the call. ``path`` says in the user's words where it was found."""

    __slots__ = ("object", "path")

    def __init__(self, object: Any, path: str = ""):
        self.object = object
        self.path = path

    def __repr__(self) -> str:
        return self.path or repr(self.object)

    def same(self, other: Known) -> bool:
        """Whether it is the same object, or an equal one of a kind that can't be changed."""
        return same(self.object, other.object)


class Argument(Known):
    """What the caller handed in: of a tensor, the figures are the same at each call, not the object."""

    __slots__ = ()


class New:
    """Made by the call. ``items`` are the parts of a container (a list; a dict by its keys), None where they aren't known."""

    __slots__ = ("items", "nullable", "owned", "type")

    def __init__(self, type: type | None = None, items: Any = None, owned: bool = True, nullable: bool = True):
        self.type = type  # None: whatever a tensor function returns: tensors, numbers, tuples of them
        self.items = items
        self.nullable = nullable and type is None  # whether it may be None
        self.owned = owned  # False: a container that the caller handed in, which must not be changed

    def __repr__(self) -> str:
        return f"a new {self.type.__name__ if self.type else 'result'}"


class Bound(NamedTuple):
    """A method of a value."""

    receiver: Any
    name: str

    def __repr__(self) -> str:
        return f"{self.receiver}.{self.name}"


class Super(NamedTuple):
    """``super()``: what the classes behind ``owner`` say of the receiver."""

    receiver: Any
    owner: type


class Local(NamedTuple):
    """A function or lambda that the call defines, with the names around it."""

    node: ast.FunctionDef | ast.Lambda
    frame: Any
    defaults: list[Any]
    named: dict[str, Any]

    def __repr__(self) -> str:
        return getattr(self.node, "name", "a lambda")


class Either:
    """One of several values: which, is not known."""

    def __repr__(self) -> str:
        return "a value that depends on a branch"


Value = Known | New | Bound | Super | Local | Either

_PLAIN = {
    *(int, float, complex, bool, str, bytes, range, slice, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
    *(Mesh, HybridMesh),
}


def plain(value: Any) -> bool:
    """Whether an object is immutable through and through, so that its identity guards all of it."""
    if type(value) in (tuple, frozenset, torch.Size):
        return all(plain(item) for item in value)
    return type(value) in _PLAIN or (isinstance(value, enum.Enum) and _is_simple(type(value)))


_OF_ENUMS = {"__new__", "__init__", "__str__", "__repr__", "__format__"}  # that aren't called where members are compared or counted with


@functools.cache
def _is_simple(kind: type) -> bool:
    """Whether an enumeration leaves to Python how its members are compared, added, and true or false."""
    own = [(name, held) for each in kind.__mro__ for name, held in vars(each).items() if name.startswith("__") and name not in _OF_ENUMS]
    return all(not isinstance(held, types.FunctionType) or held.__globals__["__name__"] == "enum" for _, held in own)


def same(one: Any, two: Any) -> bool:
    """Whether they are the same object, or equal numbers, texts or tuples of them: in their types too, and the sign of a 0."""
    if one is two:
        return True
    if type(one) is not type(two) or isinstance(one, (enum.Enum, frozenset)):
        return False
    if isinstance(one, tuple) and not hasattr(one, "__dict__"):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, slice):
        return same((one.start, one.stop, one.step), (two.start, two.stop, two.step))
    return plain(one) and repr(one) == repr(two)


def join(a: Value | None, b: Value | None) -> Value:
    """What is known where two branches meet."""
    if a is b:
        assert a is not None
        return a
    if isinstance(a, Known) and isinstance(b, Known):
        if a.same(b):
            return a
        if plain(a.object) and plain(b.object):
            return New(type(a.object) if type(a.object) is type(b.object) else None)
    for one in (a, b):
        if isinstance(one, New) and one.type in (list, dict, set, types.GeneratorType):
            one.items = None  # what is done to the one that was taken is done to it under another name
    if isinstance(a, New) and isinstance(b, New):
        if a.type is b.type and a.type not in (list, dict, set, types.GeneratorType) and not isinstance(a.items, dict):
            return New(a.type, _joined_items(a.items, b.items), nullable=a.nullable or b.nullable)
        if a.type is None or b.type is None:
            return New() if not ({a.type, b.type} & {list, dict, set}) and not isinstance(a.items or b.items, dict) else Either()
    for one, other in ((a, b), (b, a)):
        if (
            isinstance(one, New)
            and one.type not in (list, dict, set)
            and not isinstance(one.items, dict)
            and isinstance(other, Known)
            and (plain(other.object) or isinstance(other.object, torch.Tensor))
        ):
            return New()
    return Either()


def _joined_items(a: Any, b: Any) -> Any:
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return None
    return [join(x, y) for x, y in zip(a, b, strict=True)]
