"""Objects that the call makes from the user's own classes: data classes, dicts with attributes (as transformers returns), named tuples.

An instance is a ``New`` of its class. Its items are its attributes by name, and under ``ENTRIES`` a new dict if it is a dict; those of a
named tuple are a list. What its class says of making, reading and writing it is followed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import OrderedDict
from typing import Any

from surestep.replay import attributes
from surestep.replay.values import Either, Known, Missing, New, NotReplayable, Value, join, plain

ENTRIES = "[entries]"  # no attribute can be called so
_DICTS = (dict, OrderedDict)
_NEW = [vars(kind)["__new__"] for kind in (*_DICTS, object) if "__new__" in vars(kind)]


def is_instance(value: Value) -> bool:
    """Whether it is a new object of the user's class (not a named tuple, which can't be changed)."""
    return isinstance(value, New) and isinstance(value.items, dict) and value.type not in (None, dict, object)


@functools.cache
def is_named_tuple(kind: Any) -> bool:
    """Whether a class was made by ``namedtuple`` or ``NamedTuple``, and leaves to ``tuple`` what is computed of its objects."""
    if not isinstance(kind, type) or not issubclass(kind, tuple) or not isinstance(vars(kind).get("_fields"), tuple):
        return False
    own = [each for each in kind.__mro__ if not attributes.trusted(each.__module__)]
    return not any(name in vars(each) for each in own for name in _OF_TUPLES)


_OF_TUPLES = {"__iter__", "__len__", "__getitem__", "__contains__", "__bool__", "__hash__", "__eq__", "__getattribute__", "__getattr__"}


def construct(walk: Any, kind: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``kind(...)``. Raises ``NotReplayable`` where it isn't told by the class's Python code alone."""
    if is_named_tuple(kind):
        return _named_tuple(kind, args, kwargs)
    base = next(each for each in kind.__mro__ if each in (*_DICTS, object))
    held = attributes.held(walk, kind, "__init__")
    made_plainly = type(kind) is type and attributes.held(walk, kind, "__new__") in _NEW
    if not made_plainly or attributes.trusted(kind.__module__) or hasattr(kind, "__del__"):
        raise NotReplayable(f"a new {kind.__name__} is made, which its class does in a way that is not followed")
    made = New(kind, {} if base is object else {ENTRIES: New(dict, {})})
    if dataclasses.is_dataclass(kind) and isinstance(held, types.FunctionType) and held.__code__.co_filename == "<string>":
        _fill(walk, made, kind, args, kwargs)
    elif isinstance(held, types.FunctionType):
        from surestep.replay import calls

        calls.call(walk, Known(held, f"{kind.__name__}.__init__"), [made, *args], kwargs)
    elif args or kwargs:
        raise NotReplayable(f"a new {kind.__name__} is filled in a way that is not followed")
    return made


def _named_tuple(kind: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(vars(kind).get("__new__"), types.FunctionType) and vars(kind)["__new__"].__code__.co_filename.startswith("<string"):
        given = {
            **{name: Known(value) for name, value in kind._field_defaults.items()},
            **dict(zip(kind._fields, args, strict=False)),
            **kwargs,
        }
        if given.keys() == set(kind._fields) and len(args) <= len(kind._fields):
            return New(kind, [given[name] for name in kind._fields])
    raise NotReplayable(f"a new {kind.__name__} is made in a way that is not followed")


def _fill(walk: Any, made: New, kind: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """What the ``__init__`` of a data class does."""
    from surestep.replay import calls

    fields = dataclasses.fields(kind)
    attributes.held(walk, kind, "__dataclass_fields__")
    walk.guards.code(kind.__init__)
    with_default = [field for field in fields if field.init and not field.kw_only and _has_default(field)]
    for field, default in zip(with_default, kind.__init__.__defaults__ or (), strict=True):
        if field.default is not default and field.default is not dataclasses.MISSING:
            raise NotReplayable(f"{kind.__name__}'s defaults were replaced")
    names = [field.name for field in fields if field.init and not field.kw_only]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for field in fields:
        if field.name in given and field.init:
            value = given[field.name]
        elif field.default is not dataclasses.MISSING:
            value = Known(field.default, f"{kind.__name__}.{field.name}")
        elif field.default_factory is not dataclasses.MISSING:
            value = calls.call(walk, Known(field.default_factory, f"{kind.__name__}.{field.name}'s factory"), [], {})
        else:
            raise NotReplayable(f"{kind.__name__} misses its argument {field.name!r}")
        frozen = kind.__dataclass_params__.frozen
        (_put if frozen else store)(walk, made, field.name, value)
    if attributes.in_class(walk, kind, "__post_init__"):
        if any(getattr(field.type, "__class__", None) is dataclasses.InitVar for field in fields):
            raise NotReplayable(f"{kind.__name__} has an InitVar")
        calls.call(walk, attribute(walk, made, "__post_init__"), [], {})


def _has_default(field: Any) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def attribute(walk: Any, value: New, name: str) -> Value:
    """``value.name``"""
    kind: Any = value.type
    if is_named_tuple(kind):
        if name in kind._fields:
            return value.items[kind._fields.index(name)]
        raise NotReplayable(f"{name!r} of {value} is not followed")
    if attributes.held(walk, kind, "__getattribute__") not in attributes.GENERIC:
        raise NotReplayable(f"{kind.__name__} decides what its attributes are (__getattribute__)")
    held = attributes.held(walk, kind, name)
    if isinstance(held, property) or name not in value.items:
        if held is attributes.MISSING:
            if attributes.in_class(walk, kind, "__getattr__"):
                raise NotReplayable(f"{kind.__name__} decides what its attributes are (__getattr__)")
            raise Missing(f"{value} has no attribute {name!r}")
        return attributes.from_class(walk, value, held, f"{kind.__name__}.{name}")
    if hasattr(type(held), "__set__") and not isinstance(held, types.MemberDescriptorType):
        raise NotReplayable(f"{kind.__name__}.{name} is computed by a descriptor")
    return value.items[name]


def store(walk: Any, value: New, name: str, item: Value) -> None:
    """``value.name = item``"""
    kind: Any = value.type
    setter = attributes.held(walk, kind, "__setattr__")
    if isinstance(setter, types.FunctionType):
        from surestep.replay import calls

        calls.call(walk, Known(setter, f"{kind.__name__}.__setattr__"), [value, Known(name), item], {})
        return
    held = attributes.held(walk, kind, name)
    if setter is not object.__setattr__ or (hasattr(type(held), "__set__") and not isinstance(held, types.MemberDescriptorType)):
        raise NotReplayable(f"{kind.__name__}.{name} is set in a way that is not followed")
    _put(walk, value, name, item)


def _put(walk: Any, value: New, name: str, item: Value) -> None:
    if not value.owned:
        raise NotReplayable(f"{name} of an argument is changed, which outlives the call")
    value.items[name] = join(value.items.get(name, Either()), item) if walk.branches else item


def method(walk: Any, value: New, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method that is Python's own: of ``object`` or ``dict``."""
    from surestep.replay import calls, expressions

    entries = value.items.get(ENTRIES)
    if name == "__setattr__" and isinstance(args[0], Known):
        _put(walk, value, args[0].object, args[1])
        return Known(None)
    if name == "__init__" and not args and not kwargs:
        return Known(None)
    if entries is not None:
        if name == "__setitem__":
            expressions.set_item(walk, entries, args[0], args[1])
            return Known(None)
        if name == "__getitem__":
            return attributes.subscript(walk, entries, args[0])
        if name in ("keys", "values", "items", "get"):
            return calls.call(walk, attributes.attribute(walk, entries, name), args, kwargs)
        if (
            name in ("__len__", "__contains__")
            and entries.items is not None
            and all(isinstance(arg, Known) and plain(arg.object) for arg in args)
        ):
            return Known(len(entries.items) if name == "__len__" else args[0].object in entries.items)  # type: ignore[missing-attribute]
    raise NotReplayable(f"{name}() of {value} is not followed")


def special(walk: Any, value: Value, name: str, args: list[Value]) -> Value | None:
    """What ``value[...]``, ``in`` and ``len()`` call; None where it is no instance with such a method."""
    from surestep.replay import calls

    if not isinstance(value, New) or not is_instance(value):
        return None
    return calls.call(walk, attribute(walk, value, name), args, {})


def truth(walk: Any, value: New) -> bool | None:
    """``bool(value)`` of an instance, as its class says; None where that is not known."""
    from surestep.replay import expressions

    kind: Any = value.type
    for name in ("__bool__", "__len__"):
        if attributes.in_class(walk, kind, name):
            found = special(walk, value, name, [])
            return None if found is None else expressions.truth(walk, found)
    return True


def computes(value: Value) -> bool:
    """Whether arithmetic, a comparison or a text of a new value runs no code of the user's: no instance is in it."""
    if not isinstance(value, New) or value.type in (dict, object) or is_instance(value) or is_named_tuple(value.type):
        return False
    return not isinstance(value.items, list) or all(not isinstance(item, New) or computes(item) for item in value.items)
