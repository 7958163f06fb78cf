"""Attributes, entries and elements of values. What is read from an object that existed before the call is guarded."""

from __future__ import annotations

import enum
import inspect
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import torch

from surestep.replay import instances, reasons
from surestep.replay.known import FIGURES, FOLLOWED, TENSOR_PROPERTIES, TRUSTED, tensor_methods
from surestep.replay.values import Argument, Bound, Either, Known, Local, Missing, New, NotReplayable, Super, Value, plain

DICTS = (dict, OrderedDict, defaultdict)
SEQUENCES = (list, tuple, deque, torch.Size)
MISSING = object()
# Those that look in the class and the object, as `object` does.
GENERIC = frozenset(
    vars(kind)["__getattribute__"]
    for kind in (object, tuple, dict, list, set, str, int, float, deque, OrderedDict, types.SimpleNamespace)
    if "__getattribute__" in vars(kind)
)
_tuplegetter: type = type(vars(namedtuple("_", "field"))["field"])  # how a named tuple has its fields
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType)
# Methods of the context that an autograd.Function is given.
OF_CONTEXTS = {"save_for_backward", "save_for_forward", "mark_non_differentiable", "mark_dirty", "set_materialize_grads"}


def trusted(module: str) -> bool:
    """Whether a module's names are taken to stay what they are: PyTorch's and Python's own."""
    return module.partition(".")[0] in TRUSTED


def is_library(function: Any) -> bool:
    """Whether a function, or a class, is PyTorch's or Python's own.

    ``functools.wraps`` gives a user's function the name of the module that it wraps: where its code is says more.
    """
    names = getattr(function, "__globals__", None)
    module = (function.__module__ if names is None else names.get("__name__")) or ""
    return trusted(module) and module not in FOLLOWED


def attribute(walk: Any, value: Value, name: str) -> Value:
    """``value.name``"""
    if isinstance(value, Known):
        return _of_known(walk, value, name)
    if isinstance(value, New) and (instances.is_instance(value) or instances.is_named_tuple(value.type)):
        return instances.attribute(walk, value, name)
    if isinstance(value, New):
        if value.type in (None, torch.Tensor):
            own_of_tensors(walk, name)
        return _of_new(value, name)
    if isinstance(value, Super):
        return _of_super(walk, value, name)
    if isinstance(value, Bound | Local | Either):
        raise NotReplayable(f"{name!r} of {value}: which object that is, is not known. Decide on the branch outside of the step")
    raise AssertionError(value)


def _of_plain(walk: Any, value: Known, name: str, path: str) -> Value:
    """An attribute of a number, a text, a dtype, a container of Python's own: a method, or what its type computes."""
    thing = value.object
    if isinstance(thing, enum.Enum):
        if name in ("name", "value") and plain(found := getattr(thing, name)):
            return Known(found, path)
        return _of_instance(walk, value, name, path)
    if not hasattr(thing, name):
        raise Missing(f"{path} is not there")
    found = getattr(thing, name)
    if callable(found):
        return Bound(value, name)
    if plain(found):
        return Known(found, path)
    raise NotReplayable(f"{path} is not followed")


def _of_class(walk: Any, value: Known, name: str, path: str) -> Value:
    kind = value.object
    if type(kind) is not type and hasattr(type(inspect.getattr_static(type(kind), name, None)), "__set__"):
        raise NotReplayable(f"{path} is what the class's own class says, which is not followed. Make it an attribute of the class")
    found = held(walk, kind, name)
    if found is MISSING:
        if hasattr(type(kind), name):
            raise NotReplayable(f"{path} is what the class's own class says, which is not followed. Make it an attribute of the class")
        raise Missing(f"{path} is not there")
    if isinstance(found, (staticmethod, classmethod)):
        return Known(found.__func__ if isinstance(found, staticmethod) else _Method(found.__func__, value, path), path)
    if not isinstance(found, (types.FunctionType, *_METHODS[:2])) and hasattr(type(found), "__get__"):
        raise NotReplayable(f"{path} is computed by a descriptor. Make it a property, or a plain attribute")
    return walk.known(found, path)


def _of_super(walk: Any, value: Super, name: str) -> Value:
    receiver = value.receiver
    if isinstance(receiver, New):
        kind: Any = receiver.type
    else:
        kind = receiver.object if isinstance(receiver.object, type) else type(receiver.object)
    walk.guards.order(kind)
    behind = kind.__mro__[kind.__mro__.index(value.owner) + 1 :]
    for each in behind:
        names = walk.guards.of_class(each)
        found = names.get(name, MISSING)
        if found is not MISSING:
            walk.guards.item(names, name, found, f"{each.__name__}.")
            return from_class(walk, receiver, found, f"super().{name}")
        walk.guards.lacks(names, name, each.__name__)
    raise Missing(f"super() has no attribute {name!r}")


def _of_new(value: New, name: str) -> Value:
    if value.type is object and isinstance(value.items, dict) and name in value.items:
        return value.items[name]
    if value.type is object and value.items is None and name not in OF_CONTEXTS:
        return New()  # what the call itself has put there
    if value.type in (None, torch.Tensor):
        if name in TENSOR_PROPERTIES:
            return New(nullable=name == "grad")
        if name not in tensor_methods():
            raise NotReplayable(reasons.of_method("a tensor", name) if hasattr(torch.Tensor, name) else f"a tensor has no {name!r}")
    return Bound(value, name)


def _of_known(walk: Any, value: Known, name: str) -> Value:
    thing = value.object
    path = f"{value.path}.{name}" if value.path else name
    if isinstance(thing, torch.Tensor):
        return _of_tensor(walk, value, name, path)
    if isinstance(thing, types.ModuleType):
        return _of_module(walk, thing, name, path)
    if plain(thing) or type(thing) in (*DICTS, list, tuple, set, frozenset, deque):
        return _of_plain(walk, value, name, path)
    if isinstance(thing, type):
        return _of_class(walk, value, name, path)
    return _of_instance(walk, value, name, path)


def _of_tensor(walk: Any, value: Known, name: str, path: str) -> Value:
    tensor = value.object
    walk.tensor(value)
    own_of_tensors(walk, name)
    if name in FIGURES:
        return Known(getattr(tensor, name), path)  # of the layout, which is guarded
    if name in TENSOR_PROPERTIES or name == "grad_fn":
        return New(nullable=name in ("grad", "grad_fn"))  # a gradient is there or not: backward and zero_grad inside the call decide
    if name in tensor_methods() or callable(getattr(torch.Tensor, name, None)):
        return Bound(value, name)
    if hasattr(torch.Tensor, name):
        raise NotReplayable(f"{path} is not followed")
    own = vars(tensor)  # what somebody has put there
    if isinstance(value, Argument):
        raise NotReplayable(f"{path}: what is put on a tensor that is passed is not guarded. Pass it as an argument of its own")
    if name in own:
        walk.guards.item(own, name, own[name], f"{value.path}.")
        return walk.known(own[name], path)
    walk.guards.lacks(own, name, value.path)
    raise Missing(f"{path} is not there")


def own_of_tensors(walk: Any, *names: str) -> None:
    """What these names of ``torch.Tensor``'s are, in Python: PyTorch's own, and so at each call."""
    held = walk.guards.of_class(torch.Tensor)
    for name in names:
        if name in held:
            if isinstance(held[name], types.FunctionType) and not is_library(held[name]):
                raise NotReplayable(f"torch.Tensor.{name} was replaced, and isn't followed")
            walk.guards.item(held, name, held[name], "torch.Tensor.")


def _of_module(walk: Any, module: types.ModuleType, name: str, path: str) -> Value:
    names = vars(module)
    if name not in names:
        found = getattr(module, name, None)  # a module's own __getattr__, which loads what it names
        if not trusted(module.__name__) or not isinstance(found, (types.ModuleType, types.FunctionType, type)):
            raise NotReplayable(f"{path} is computed by its module (__getattr__). Take it from there once, outside of the step")
        return Known(found, path)
    walk.guards.item(names, name, names[name], f"{module.__name__}.")
    return walk.known(names[name], path)


def held(walk: Any, kind: Any, name: str) -> Any:
    """A class's attribute, as the class holds it; guarded, as is that the classes before don't have it."""
    walk.guards.order(kind)
    for each in kind.__mro__:
        names = walk.guards.of_class(each)
        if name in names:
            walk.guards.item(names, name, names[name], f"{each.__name__}.")
            return names[name]
        if each is not object:
            walk.guards.lacks(names, name, each.__name__)
    return MISSING


def in_class(walk: Any, kind: type, name: str) -> bool:
    """Whether a class or one of its bases has an attribute; guarded."""
    return held(walk, kind, name) is not MISSING


def _of_instance(walk: Any, value: Known, name: str, path: str) -> Value:
    """What the object's class says, in its ``__getattribute__`` and ``__getattr__``, is followed; else Python's order is."""
    from surestep.replay import calls

    kind = type(value.object)
    walk.guards.type(value.object)
    getter = held(walk, kind, "__getattribute__")
    try:
        if isinstance(getter, types.FunctionType):
            return _answered(walk, calls.call(walk, Known(getter, path), [value, Known(name)], {}), path)
        return generic(walk, value, name)
    except Missing:
        other = held(walk, kind, "__getattr__")
        if other is MISSING:
            raise
        if other is torch.nn.Module.__getattr__:
            return of_module(walk, value, name)
        if not isinstance(other, types.FunctionType):
            raise NotReplayable(f"{path}: {kind.__name__} decides what its attributes are (__getattr__)") from None
        return _answered(walk, calls.call(walk, Known(other, path), [value, Known(name)], {}), path)


def _answered(walk: Any, found: Value, path: str) -> Value:
    from surestep.replay.walk import NEVER

    if found is NEVER:
        raise Missing(f"{path} is not there")
    return found


def generic(walk: Any, value: Known, name: str) -> Value:
    """``object.__getattribute__``: a property of the class, the object's own, the class's."""
    thing, kind = value.object, type(value.object)
    path = f"{value.path}.{name}" if value.path else name
    plainly = next((each["__getattribute__"] for each in map(vars, kind.__mro__) if _is_own(each)), None)
    if plainly not in GENERIC:
        raise NotReplayable(
            f"{path}: {kind.__name__} decides what its attributes are (__getattribute__), and is not followed. Take it outside of the step"
        )
    found = held(walk, kind, name)
    if name == "__dict__" and isinstance(getattr(thing, "__dict__", None), dict):
        return Known(vars(thing), path)  # which is guarded with the class
    if isinstance(found, property):
        return _property(walk, value, found, path)
    if isinstance(found, _tuplegetter):
        return walk.known(found.__get__(thing), path)
    if isinstance(found, types.MemberDescriptorType):
        if not hasattr(thing, name):
            raise NotReplayable(f"{path} has no value yet")
        walk.guards.slot(thing, found, found.__get__(thing), path)
        return walk.known(found.__get__(thing), path)
    if found is not MISSING and hasattr(type(found), "__set__"):
        raise NotReplayable(f"{path} is computed by a descriptor. Make it a property, or a plain attribute")
    own = getattr(thing, "__dict__", {})
    if (id(own), name) in walk.kept:
        return walk.kept[id(own), name]
    if name in own:
        walk.guards.item(own, name, own[name], f"{value.path}.")
        return walk.known(own[name], path)
    walk.guards.lacks(own, name, value.path)
    if found is not MISSING:
        return from_class(walk, value, found, path)
    raise Missing(f"{value} has no attribute {name!r}")


def of_module(walk: Any, value: Known, name: str) -> Value:
    """What ``torch.nn.Module.__getattr__`` finds: a parameter, a buffer or a child."""
    own = vars(value.object)
    for table in ("_parameters", "_buffers", "_modules"):
        entries = own[table]
        walk.guards.item(own, table, entries, f"{value.path}.")
        if name in entries:
            walk.guards.item(entries, name, entries[name], f"{value.path}.")
            return walk.known(entries[name], f"{value.path}.{name}" if value.path else name)
        walk.guards.lacks(entries, name, value.path)
    raise Missing(f"{value} has no attribute {name!r}")


def _is_own(names: Any) -> bool:
    return "__getattribute__" in names and not isinstance(names["__getattribute__"], types.FunctionType)


class _Method:
    """A Python function bound to its first argument."""

    def __init__(self, function: Any, receiver: Value, path: str):
        self.function = function
        self.receiver = receiver
        self.path = path

    def __repr__(self) -> str:
        return self.path


def from_class(walk: Any, value: Known | New, held: Any, path: str) -> Value:
    """What a class's attribute is when it is read from an object: a function is a method then."""
    if isinstance(held, property):
        return _property(walk, value, held, path)
    if isinstance(held, staticmethod):
        return Known(held.__func__, path)
    if isinstance(held, classmethod):
        kind: Any = value.type if isinstance(value, New) else value.object if isinstance(value.object, type) else type(value.object)
        return Known(_Method(held.__func__, Known(kind, kind.__name__), path), path)
    if isinstance(held, types.FunctionType) and isinstance(value, Known) and isinstance(value.object, type):
        return Known(held, path)  # of super() in a class method
    if isinstance(held, types.FunctionType):
        return Known(_Method(held, value, path), path)
    if isinstance(held, _METHODS):
        return Bound(value, path.rpartition(".")[2])
    if hasattr(type(held), "__get__"):
        raise NotReplayable(f"{path} is computed by a descriptor. Make it a property, or a plain attribute")
    return walk.known(held, path)


def _property(walk: Any, value: Known | New, held: property, path: str) -> Value:
    from surestep.replay import calls

    if held.fget is None:
        raise NotReplayable(f"{path} can't be read")
    return calls.call(walk, Known(held.fget, path), [value], {})


def unbound(function: Any) -> tuple[Any, list[Value]]:
    """A function and what it is bound to."""
    if isinstance(function, _Method):
        return function.function, [function.receiver]
    if isinstance(function, types.MethodType):
        return function.__func__, [Known(function.__self__, getattr(function, "__qualname__", ""))]
    return function, []


_PROTOCOL = ("__getitem__", "__iter__", "__len__", "__contains__", "__missing__", "__getattribute__")
_PROTOCOL += ("keys", "values", "items", "get", "index", "count", "copy")


def is_container(thing: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a container is one of Python's own, or of a class that leaves to one of them how it is read."""
    kind = type(thing)
    if kind in kinds or not isinstance(thing, kinds):
        return kind in kinds
    base = next(each for each in kind.__mro__ if each in kinds)
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in _PROTOCOL)


def guard_content(walk: Any, value: Known) -> None:
    """All that a container which existed before the call holds, containers in it too."""
    thing = value.object
    if is_container(thing, DICTS):
        walk.guards.whole(thing, value.path)
        for key, item in thing.items():
            _guard_inner(walk, item, f"{value.path}[{key!r}]")
    elif is_container(thing, SEQUENCES):
        if not isinstance(thing, tuple):
            walk.guards.sequence(thing, value.path)
        for position, item in enumerate(thing):
            _guard_inner(walk, item, f"{value.path}[{position}]")
    elif type(thing) is set and all(map(plain, thing)):
        walk.guards.members(thing, value.path)
    elif isinstance(thing, (set, frozenset)):
        raise NotReplayable(f"{value}: the order of a set's elements is not told. Make it a tuple outside of the step: tuple(sorted(...))")
    else:
        raise NotReplayable(f"what {value} (a {type(thing).__name__}) holds is decided by its class. Make it a list, a tuple or a dict")


def _guard_inner(walk: Any, item: Any, path: str) -> None:
    if isinstance(item, torch.Tensor):
        walk.guards.tensor(item, path)
    elif isinstance(item, (*DICTS, list, tuple, deque, set)):
        guard_content(walk, Known(item, path))


def children(walk: Any, value: Known) -> dict[str, Any]:
    """A module's children, guarded."""
    own = vars(value.object)
    walk.guards.type(value.object)
    walk.guards.item(own, "_modules", own["_modules"], f"{value.path}.")
    walk.guards.whole(own["_modules"], value.path)
    return own["_modules"]


def iterate(walk: Any, value: Value) -> list[Value] | None:
    """The elements of an iterable, None where they aren't known one by one."""
    if isinstance(value, New) and value.type is types.GeneratorType:
        return taken(value)
    if isinstance(value, New):
        if value.type is dict and isinstance(value.items, dict):
            return [Known(key) for key in value.items]
        if isinstance(value.items, list):
            return list(value.items)
        if value.type in (None, torch.Tensor, list, tuple, dict, range, str):
            return None
        if instances.is_instance(value) and instances.ENTRIES in value.items:
            found = instances.special(walk, value, "keys", [])
            return None if found is None else iterate(walk, found)
    if isinstance(value, Known):
        thing = value.object
        if isinstance(thing, torch.Tensor):
            return None
        if isinstance(thing, (str, range)) or (isinstance(thing, tuple) and plain(thing)):
            return [Known(item) for item in thing]
        if is_container(thing, SEQUENCES):
            guard_content(walk, value)
            return [Known(item, f"{value.path}[{position}]") for position, item in enumerate(thing)]
        if is_container(thing, DICTS):
            guard_content(walk, value)
            return [Known(key) for key in thing]
        if isinstance(thing, torch.nn.Module) and type(thing) in (torch.nn.Sequential, torch.nn.ModuleList):
            return [Known(item, f"{value.path}[{name}]") for name, item in children(walk, value).items()]
        if type(thing) is torch.nn.ModuleDict:
            return [Known(name) for name in children(walk, value)]
        if type(thing) is torch.nn.ParameterList:
            own = vars(thing)
            walk.guards.whole(own["_parameters"], value.path)
            return [Known(item, f"{value.path}[{name}]") for name, item in own["_parameters"].items()]
    if isinstance(value, Known) and (isinstance(value.object, (set, frozenset)) or hasattr(type(value.object), "__next__")):
        raise NotReplayable(reasons.unfit(value))
    raise NotReplayable(f"the elements of {value} are not followed, as those of lists, tuples, dicts and PyTorch's containers are")


def taken(iterator: New) -> list[Value] | None:
    """What an iterator gives: it is used up then, or in the middle."""
    items, iterator.items = iterator.items, None
    return items() if callable(items) else items


def element(walk: Any, value: Value) -> Value:
    """Any element of an iterable whose elements aren't known one by one."""
    if isinstance(value, Known) or (isinstance(value, New) and value.type in (None, torch.Tensor)):
        return New()
    if isinstance(value, New) and value.type is range:
        return New(int)
    return New() if isinstance(value, New) and value.type is str else Either()


def mapping(walk: Any, value: Value) -> dict[str, Value]:
    """The entries of a dict that is unpacked."""
    if isinstance(value, New) and value.type is dict and isinstance(value.items, dict):
        return dict(value.items)
    listed = instances.special(walk, value, "items", []) or value
    if isinstance(listed, New) and listed.type in (list, types.GeneratorType):
        pairs = [iterate(walk, pair) for pair in iterate(walk, listed) or ()]
        if pairs and all(pair is not None and len(pair) == 2 and isinstance(pair[0], Known) and plain(pair[0].object) for pair in pairs):
            return {key.object: item for key, item in pairs}  # type: ignore[missing-attribute]
    if isinstance(value, Known) and is_container(value.object, DICTS):
        guard_content(walk, value)
        return {key: Known(item, f"{value.path}[{key!r}]") for key, item in value.object.items()}
    raise NotReplayable(f"the entries of {value} are not known. Write a dict whose keys are numbers and texts that the code shows")


def subscript(walk: Any, value: Value, key: Value) -> Value:
    """``value[key]``"""
    found = instances.special(walk, value, "__getitem__", [key])
    if found is not None:
        return found
    if isinstance(value, New):
        if value.type in (None, torch.Tensor, str, range):
            _read(walk, key)
            return New()
        if isinstance(key, Known) and value.items is not None:
            try:
                found = value.items[key.object]
            except (KeyError, IndexError, TypeError) as error:
                raise NotReplayable(f"an entry is not there: {error!r}") from error
            return New(value.type, found) if isinstance(key.object, slice) else found
        return Either()
    if isinstance(value, Known):
        return _entry(walk, value, key)
    raise NotReplayable(f"an entry of {value} is asked for. Decide on the branch outside of the step")


def _read(walk: Any, key: Value) -> None:
    from surestep.replay import calls

    calls.read(walk, key)


def _entry(walk: Any, value: Known, key: Value) -> Value:
    thing = value.object
    if isinstance(thing, torch.Tensor):
        walk.tensor(value)
        _read(walk, key)
        return New(torch.Tensor)
    if not (isinstance(key, Known) and plain(key.object)):
        if isinstance(thing, (tuple, list, str)) and plain(tuple(thing)):
            guard_content(walk, value)
            return New()
        raise NotReplayable(f"an entry of {value} by a key that is not known: keys are numbers and texts that the code shows")
    path = f"{value.path}[{key.object!r}]"
    if isinstance(thing, (dict, list)) and (id(thing), key.object) in walk.kept:
        return walk.kept[id(thing), key.object]
    if is_container(thing, DICTS):
        if key.object not in thing:
            raise NotReplayable(f"{path} is not there")
        walk.guards.item(thing, key.object, thing[key.object], f"{value.path} ")
        return walk.known(thing[key.object], path)
    if isinstance(thing, (str, range)) or is_container(thing, SEQUENCES):
        if not isinstance(thing, (tuple, str, range)):
            walk.guards.sequence(thing, value.path)
        try:
            return walk.known(thing[key.object], path)
        except (IndexError, TypeError) as error:
            raise NotReplayable(f"{path} is not there before the step: {error}") from None
    if type(thing) in (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict):
        entries = children(walk, value)
        if isinstance(key.object, slice):
            return New(list, [Known(entries[name], f"{value.path}[{name}]") for name in list(entries)[key.object]])
        names = list(entries)
        name = key.object if isinstance(key.object, str) else names[key.object]
        return Known(entries[name], path)
    if type(thing) is torch.nn.ParameterDict or (type(thing) is torch.nn.ParameterList and type(key.object) is int and key.object >= 0):
        return attribute(walk, value, str(key.object))
    if isinstance(thing, torch.nn.Module):
        raise NotReplayable(f"an entry of {value} (a {type(thing).__name__}) is not followed. Take it by attribute")
    raise NotReplayable(f"an entry is asked for. {reasons.unfit(value)}")
