"""Calls: of the user's functions, which are followed; of modules and optimizers; of PyTorch's and Python's own that only compute."""

from __future__ import annotations

import abc
import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from surestep import _compat
from surestep.replay import actions, attributes, control, instances, modules, optimizers, reasons, scaler, stores
from surestep.replay.known import MATH, PURE, is_tensor_function, managers, named, refusal, tensor_methods
from surestep.replay.values import Argument, Bound, Either, Known, Local, Missing, New, NotReplayable, Super, Value, plain

_LIST_METHODS = {"append", "extend", "insert"}
_PURE_METHODS = {
    "get",
    "items",
    "keys",
    "values",
    "index",
    "count",
    "copy",
    "format",
    "join",
    "split",
    "startswith",
    "endswith",
    "lower",
    "upper",
}
_PURE_METHODS |= {"replace", "strip", "partition", "rpartition", "is_integer", "bit_length", "numel", "itemsize"}


def call(walk: Any, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a call gives."""
    if isinstance(function, Local):
        return walk.local(function, args, kwargs)
    if isinstance(function, Bound):
        return _method(walk, function, args, kwargs)
    if isinstance(function, New) and isinstance(function.type, type) and issubclass(function.type, torch.nn.Module):
        return computed(walk, args, kwargs, nullable=False)  # a loss function that the call has made
    if not isinstance(function, Known):
        raise NotReplayable(f"{function} is called: which function that is, is not known. Choose it outside of the step")
    thing, receivers = attributes.unbound(function.object)
    args = [*receivers, *args]
    if receivers:
        special = _special_method(walk, thing, args, kwargs)
        if special is not None:
            return special
    if type(thing) is functools.partial:
        for name in ("func", "args", "keywords"):
            walk.guards.slot(thing, vars(functools.partial)[name], getattr(thing, name), f"{function.path}'s {name}")
        walk.guards.whole(thing.keywords, f"{function.path}'s arguments ")
        given = [*(Known(value, f"{function.path}'s argument") for value in thing.args), *args]
        named_ = {name: Known(value, f"{function.path}'s argument {name}") for name, value in thing.keywords.items()}
        return call(walk, Known(thing.func, function.path), given, {**named_, **kwargs})
    if isinstance(thing, torch.nn.Module):
        return modules.call(walk, Known(thing, function.path), args, kwargs)
    if is_compiled(thing):
        return call(walk, Known(thing.function, function.path), args, kwargs)
    if is_tensor_function(thing):
        return computed(walk, args, kwargs, gives_none(getattr(thing, "__name__", "")))
    if _of_type(thing) or thing in MATH:
        return _builtin(walk, thing, args, kwargs)
    if isinstance(thing, types.FunctionType):
        return _function(walk, thing, args, kwargs, function.path)
    if isinstance(thing, (types.BuiltinFunctionType, types.MethodWrapperType)) and isinstance(thing.__self__, torch.Tensor):
        return _method(walk, Bound(Known(thing.__self__, function.path), thing.__name__), args, kwargs)
    if isinstance(thing, types.WrapperDescriptorType) and args and (thing in attributes.GENERIC or isinstance(args[0], New)):
        return _method(walk, Bound(args[0], thing.__name__), args[1:], kwargs)
    if isinstance(thing, types.MethodDescriptorType) and getattr(torch.Tensor, thing.__name__, None) is thing:
        return _method(walk, Bound(args[0], thing.__name__), args[1:], kwargs)
    if thing is super and len(args) == 2 and isinstance(args[0], Known) and isinstance(args[1], (Known, New)):
        return Super(args[1], args[0].object)
    if isinstance(thing, type):
        return modules.construct(walk, thing, args, kwargs)
    if not isinstance(thing, (type, types.BuiltinFunctionType)) and isinstance(vars(type(thing)).get("__call__"), types.FunctionType):
        walk.guards.type(thing)
        attributes.in_class(walk, type(thing), "__call__")
        return _function(walk, type(thing).__call__, [Known(thing, function.path), *args], kwargs, function.path)
    raise refusal(thing)


def is_compiled(thing: Any) -> bool:
    """Whether it is what ``compile`` returns: inside of a step, a part of it."""
    from surestep.replay.compiled import CompiledFunction

    return isinstance(thing, CompiledFunction)


def _of_type(thing: Any) -> bool:
    try:
        return thing in PURE
    except TypeError:
        return False


def takes_any(function: Value) -> bool:
    """Whether a function may be given a number of arguments that isn't known: it only computes."""
    return isinstance(function, Bound) or (
        isinstance(function, Known) and (is_tensor_function(function.object) or _of_type(function.object))
    )


def _special_method(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Methods of modules and optimizers that are known as a whole."""
    receiver = args[0]
    if not isinstance(receiver, Known):
        return None
    if isinstance(receiver.object, torch.nn.Module):
        return modules.method(walk, receiver, function, args[1:], kwargs)
    if isinstance(receiver.object, torch.amp.GradScaler):
        return scaler.method(walk, receiver, function, args[1:], kwargs)
    if actions.is_scheduler_step(receiver.object, function):
        return actions.scheduler_step(walk, receiver, args[1:], kwargs)
    if isinstance(receiver.object, torch.optim.Optimizer):
        return optimizers.method(walk, receiver, function, args[1:], kwargs)
    if isinstance(receiver.object, type) and issubclass(receiver.object, torch.autograd.Function):
        if function.__name__ != "apply" or not attributes.is_library(function):
            return None
        return modules.autograd_function(walk, receiver, args[1:])
    return None


def _function(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value], path: str) -> Value:
    """A Python function: followed, if it is the user's; PyTorch's own decorators are seen through."""
    if _compat.is_scheduled(function):
        return optimizers.scheduled_step(walk, function, args, kwargs)
    if function.__globals__.get("__name__") == "torch.utils._contextlib":
        return _decorated(walk, function, args, kwargs, path)
    if control.is_pure_wrapper(function):
        return call(walk, Known(function.__wrapped__, path), args, kwargs)
    if attributes.is_library(function):
        special = modules.library(walk, function, args, kwargs)
        if special is not None:
            return special
        raise refusal(function)
    walk.guards.code(function)
    owner = _owner(args, function)
    return walk.function(function, args, kwargs, owner)


def _decorated(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value], path: str) -> Value:
    """``@torch.no_grad()`` and its like: the function inside, whose mode is PyTorch's and is set back."""
    inner = getattr(function, "__wrapped__", None)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    manager = cells["ctx_factory"].cell_contents if "ctx_factory" in cells else None
    owner = getattr(manager, "__self__", manager)
    if inner is None or (type(owner) not in managers() and owner not in managers()):
        raise NotReplayable(f"the decorator of {named(function)} is not followed. Use `with` inside of the function")
    return call(walk, Known(inner, path), args, kwargs)


def _owner(args: list[Value], function: Any) -> type | None:
    """The class in which a method is defined: where ``super()`` starts."""
    kind: Any = None
    if args and isinstance(args[0], Known):
        kind = args[0].object if isinstance(args[0].object, type) else type(args[0].object)
    elif args and isinstance(args[0], New) and instances.is_instance(args[0]):
        kind = args[0].type
    if kind is not None:
        for each in kind.__mro__:
            held = vars(each).get(function.__name__)
            held = getattr(held, "__func__", getattr(held, "fget", held))
            if held is function or getattr(held, "__wrapped__", None) is function:
                return each
    return None


def super_of(walk: Any, frame: Any) -> Value:
    """``super()``"""
    scope = frame
    while scope is not None and scope.function is None:
        scope = scope.outer
    if scope is None or scope.owner is None:
        raise NotReplayable("super() outside of a method")
    first = scope.function.__code__.co_varnames[0]
    receiver = scope.names.get(first)
    if not isinstance(receiver, Known) and not (isinstance(receiver, New) and instances.is_instance(receiver)):
        raise NotReplayable("super() of an object that the call makes")
    return Super(receiver, scope.owner)


def computed(walk: Any, args: list[Value], kwargs: dict[str, Value], nullable: bool = True) -> Value:
    """The result of something that only computes: what it reads of outside objects is guarded."""
    for value in (*args, *kwargs.values()):
        read(walk, value)
    return New(nullable=nullable)


def gives_none(name: str) -> bool:
    """Whether a tensor function or method of this name may return None."""
    return name.startswith(("_foreach", "_assert", "__set")) or name in {"backward", "clip_grad_value_", "clip_grads_with_norm_"}


def read(walk: Any, value: Value) -> None:
    """A value is given to something that only computes: all that it could look at is guarded."""
    if isinstance(value, Known):
        thing = value.object
        if isinstance(thing, torch.Tensor):
            walk.tensor(value)
        elif isinstance(thing, (dict, list, tuple, deque)) and not plain(thing):
            attributes.guard_content(walk, value)
            for item in thing.values() if isinstance(thing, dict) else thing:
                read(walk, Known(item, f"an entry of {value}"))
        elif not plain(thing) and not isinstance(thing, (type, torch.Generator)):
            raise NotReplayable(reasons.unfit(value))
    elif isinstance(value, New) and value.type is types.GeneratorType:
        for item in attributes.iterate(walk, value) or ():
            read(walk, item)
    elif instances.is_instance(value):
        raise NotReplayable(reasons.unfit(value))
    elif isinstance(value, New):
        items = value.items.values() if isinstance(value.items, dict) else value.items or ()
        for item in items:
            read(walk, item)
    else:
        raise NotReplayable(reasons.unfit(value))


def _method(walk: Any, function: Bound, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a value that isn't the user's own object."""
    receiver, name = function
    if isinstance(receiver, New) and instances.is_instance(receiver):
        return instances.method(walk, receiver, name, args, kwargs)
    if isinstance(receiver, New):
        return _method_of_new(walk, receiver, name, args, kwargs)
    if not isinstance(receiver, Known):
        raise NotReplayable(f"{name}() of {receiver}: which object that is, is not known. Decide on the branch outside of the step")
    thing = receiver.object
    if isinstance(thing, torch.Tensor):
        walk.tensor(receiver)
        if name in (
            "size",
            "dim",
            "numel",
            "stride",
            "is_contiguous",
            "is_floating_point",
            "is_complex",
            "element_size",
            "type",
            "ndimension",
        ):
            known = _figures(thing, name, args, kwargs)
            if known is not None:
                return known
        if name == "requires_grad_" and not kwargs and _wants_already(receiver, args):
            return receiver
        if name not in tensor_methods():
            raise NotReplayable(reasons.of_method(receiver, name))
        made = computed(walk, args, kwargs, gives_none(name))
        return receiver if name.endswith("_") and not name.endswith("__") else made
    kinds = (dict, OrderedDict, defaultdict, list, tuple, set, frozenset, str, int, float)
    if attributes.is_container(thing, kinds) and name in _PURE_METHODS:
        return _method_of_container(walk, receiver, name, args, kwargs)
    if name == "__getattribute__" and isinstance(args[0], Known):
        return attributes.generic(walk, receiver, args[0].object)
    if isinstance(thing, type):
        raise refusal(getattr(thing, name, thing))
    if type(thing) is list and name == "append" and stores.appended(walk, thing, args):
        return Known(None)
    if isinstance(thing, (list, dict, set, deque)):
        raise NotReplayable(
            f"{receiver}.{name}() changes a {type(thing).__name__} that outlives the call. Do it after the step with what that returns, "
            f"or in add_step_closure"
        )
    raise NotReplayable(
        f"{receiver}.{name}() is not known to compute only: it is a {type(thing).__name__}'s. Call it outside, and pass what it gives"
    )


def _wants_already(tensor: Known, args: list[Value]) -> bool:
    """Whether ``requires_grad_()`` changes nothing of a tensor from outside, of which it is guarded whether it wants a gradient."""
    wanted = args[0] if args else Known(True)
    return not isinstance(tensor, Argument) and isinstance(wanted, Known) and tensor.object.requires_grad is wanted.object


def _objects(values: list[Value]) -> list[Any]:
    return [value.object for value in values if isinstance(value, Known)]


def _named_objects(values: dict[str, Value]) -> dict[str, Any]:
    return {name: value.object for name, value in values.items() if isinstance(value, Known)}


def _figures(tensor: torch.Tensor, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if all(isinstance(value, Known) and plain(value.object) for value in (*args, *kwargs.values())):
        found = getattr(tensor, name)(*_objects(args), **_named_objects(kwargs))
        return Known(found) if plain(found) else None
    return None


def _method_of_new(walk: Any, receiver: New, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if receiver.type is object and name not in attributes.OF_CONTEXTS:
        raise NotReplayable(f"{name} of an object that the call makes")
    if receiver.type in (None, torch.Tensor, object):
        if receiver.type is not object and name not in tensor_methods():
            raise NotReplayable(reasons.of_method("a tensor", name))
        return computed(walk, args, kwargs, receiver.type is object or gives_none(name))
    if name in _LIST_METHODS and receiver.type is list:
        return _grown(walk, receiver, name, args)
    if name in ("update", "setdefault", "pop", "clear", "reverse", "add"):
        from surestep.replay.expressions import require_owned

        require_owned(receiver)
        computed(walk, args, kwargs)
        receiver.items = None
        return Either()
    if name in _PURE_METHODS:
        return _method_of_container(walk, receiver, name, args, kwargs)
    raise NotReplayable(
        f"{name}() of {receiver} is not followed. Write it with the operations of lists and dicts that are: append, items, get"
    )


def _grown(walk: Any, receiver: New, name: str, args: list[Value]) -> Value:
    from surestep.replay.expressions import require_owned

    require_owned(receiver)
    more: list[Value] | None = [args[0]] if name == "append" else attributes.iterate(walk, args[0]) if name == "extend" else None
    receiver.items = None if more is None or receiver.items is None or walk.branches else [*receiver.items, *more]
    return Known(None)


def _method_of_container(walk: Any, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method that only looks: of a dict, a list, a text, a number."""
    if name == "get":
        if not all(isinstance(key, New) or (isinstance(key, Known) and plain(key.object)) for key in args[:1]):
            raise NotReplayable(f"an entry of {receiver} by a key that is not known: keys are numbers and texts that the code shows")
    elif name in ("index", "count") and not _is_compared_plainly(receiver):
        raise NotReplayable(f"{receiver}.{name}() compares elements, which their class decides (__eq__). Do it outside of the step")
    else:
        computed(walk, args, kwargs)
    if isinstance(receiver, Known) and isinstance(receiver.object, (dict, list)):
        attributes.guard_content(walk, receiver)
    entries = _entries(receiver)
    if entries is not None:
        if name == "items":
            return New(list, [New(tuple, [Known(key), value]) for key, value in entries.items()])
        if name == "keys":
            return New(list, [Known(key) for key in entries])
        if name == "values":
            return New(list, list(entries.values()))
        if name == "get" and isinstance(args[0], Known):
            return entries.get(args[0].object, args[1] if len(args) > 1 else Known(None))
        if name == "copy":
            return New(dict, dict(entries))
    if (
        isinstance(receiver, Known)
        and plain(receiver.object)
        and all(isinstance(a, Known) and plain(a.object) for a in (*args, *kwargs.values()))
    ):
        found = getattr(receiver.object, name)(*_objects(args), **_named_objects(kwargs))
        return Known(found) if plain(found) else New(list, [Known(item) for item in found])
    kind = receiver.type if isinstance(receiver, New) else type(receiver.object)  # type: ignore[missing-attribute]
    if kind in (str, int, float, None):
        return New(str if kind is str else None)
    return Either()


def _is_compared_plainly(receiver: Value) -> bool:
    """Whether no code of the user's compares the elements of a list."""
    if isinstance(receiver, New):
        return receiver.items is not None and instances.computes(receiver)
    return isinstance(receiver, Known) and (not isinstance(receiver.object, list) or all(map(plain, receiver.object)))


def _entries(receiver: Value) -> dict[Any, Value] | None:
    if isinstance(receiver, New) and receiver.type is dict and isinstance(receiver.items, dict):
        return receiver.items
    if isinstance(receiver, Known) and isinstance(receiver.object, dict):
        return {key: Known(item, f"{receiver.path}[{key!r}]") for key, item in receiver.object.items()}
    return None


def _builtin(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Python's own functions, where what they give is known; else a new value."""
    if function in (getattr, hasattr):
        return _getattr(walk, function, args)
    if function is isinstance and isinstance(args[0], (Known, New)):
        return _isinstance(walk, args[0], _kinds(walk, args[1]))
    if function is next and isinstance(args[0], New):
        return _next(walk, args)
    if function in (iter, enumerate, zip, reversed, tuple, list, sorted):
        return _rearranged(walk, function, args, kwargs)
    if function is dict and not args:
        return New(dict, dict(kwargs))
    if function is dict:
        return New(dict, attributes.mapping(walk, args[0]) | kwargs)
    found = instances.special(walk, args[0], "__len__", []) if function is len else None
    if found is not None:
        return found
    if function is len and isinstance(args[0], (Known, New)):
        found = _length(walk, args[0])
        if found is not None:
            return found
    if function is type and len(args) == 1:
        if isinstance(args[0], Known):
            walk.guards.type(args[0].object)
            return Known(type(args[0].object))
        return New()
    if any(isinstance(value, Known) and isinstance(value.object, enum.Enum) for value in args) and function in (str, repr):
        raise NotReplayable(f"a text is made of {args[0]}. Make it outside of the step, or of its name: {args[0]}.name")
    if all(isinstance(value, Known) and plain(value.object) for value in (*args, *kwargs.values())):
        try:
            found = function(*_objects(args), **_named_objects(kwargs))
        except Exception as error:
            raise NotReplayable(f"{named(function)} raises {error!r}") from error
        return Known(found) if plain(found) else New()
    computed(walk, args, kwargs)
    return New(function if isinstance(function, type) and function in (str, range) else None)


def _getattr(walk: Any, function: Any, args: list[Value]) -> Value:
    if not isinstance(args[1], Known):
        raise NotReplayable("an attribute is asked for by a name that is not known. Give it as a text, or keep the objects in a dict")
    raises = walk.raises
    try:
        found = attributes.attribute(walk, args[0], args[1].object)
        if walk.raises != raises and (function is hasattr or len(args) > 2):
            raise NotReplayable(f"whether {args[0]} has {args[1].object!r} is decided by code of its class. Ask before the step")
    except Missing:
        if function is hasattr:
            return Known(False)
        if len(args) > 2:
            return args[2]
        raise
    if function is getattr:
        return found
    return New(bool) if isinstance(args[0], New) and not instances.is_instance(args[0]) else Known(True)


def _kinds(walk: Any, value: Value) -> tuple[type, ...]:
    """The classes that ``isinstance`` asks for."""
    if isinstance(value, Known) and isinstance(value.object, type):
        return (value.object,)
    if isinstance(value, Known) and isinstance(value.object, types.UnionType):
        parts: list[Value] = [Known(kind) for kind in value.object.__args__]
    elif isinstance(value, (Known, New)):
        parts = attributes.iterate(walk, value) or []
    else:
        parts = []
    if not parts:
        raise NotReplayable(f"isinstance() asks for {value}, which is no class that is known. Name the classes")
    return tuple(kind for part in parts for kind in _kinds(walk, part))


def _isinstance(walk: Any, value: Known | New, kinds: tuple[type, ...]) -> Value:
    kind = type(value.object) if isinstance(value, Known) else value.type
    for each in kinds:
        if not _tells_by_bases(each, kind):
            raise NotReplayable(f"isinstance(..., {each.__name__}) is answered by Python code of that class. Ask before the step")
    if isinstance(value, Known):
        if not plain(value.object) and not isinstance(value.object, torch.Tensor):
            walk.guards.type(value.object)
            walk.guards.order(type(value.object))
        return Known(isinstance(value.object, kinds))
    if value.type is None:
        return New(bool)
    if value.type is object:
        return New(bool)
    return Known(issubclass(value.type, kinds))


def _tells_by_bases(kind: type, of: type | None) -> bool:
    """Whether the bases of a class alone say if it is one of this kind: no code of the kind's, no registering."""
    if getattr(type(kind), "__instancecheck__", None) is type.__instancecheck__ or type(kind).__module__.startswith("torch."):
        return True
    if type(kind) is not abc.ABCMeta or of is None:
        return False
    derived = kind in of.__mro__ and all("__subclasshook__" not in vars(each) for each in kind.__mro__[:-1])
    return derived or (kind.__module__ == "collections.abc" and attributes.trusted(of.__module__))


def _length(walk: Any, value: Known | New) -> Value | None:
    if isinstance(value, New):
        return Known(len(value.items)) if isinstance(value.items, (list, dict)) else New(int)
    thing = value.object
    if isinstance(thing, torch.Tensor):
        walk.tensor(value)
        return Known(len(thing))
    if isinstance(thing, (list, dict, tuple, deque)):
        attributes.guard_content(walk, value)
        return Known(len(thing))
    if isinstance(thing, (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)):
        return Known(len(attributes.children(walk, value)))
    return None


def _next(walk: Any, args: list[Value]) -> Value:
    """The next element of an iterator that the call makes."""
    iterator: Any = args[0]
    if iterator.type is not types.GeneratorType or iterator.items is None:
        raise NotReplayable(f"next() of {iterator} is not followed. Use a loop, or an index")
    items = attributes.taken(iterator)
    if not items:
        raise NotReplayable("next() at the end of an iterator, or of one whose elements are not known")
    found, rest = items[0], items[1:]
    iterator.items = None if walk.branches else rest
    return found


def _rearranged(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return New(function if function in (tuple, list) else list, [])
    lists = [attributes.iterate(walk, value) for value in args[: 1 if function is not zip else None]]
    once = types.GeneratorType if function in (iter, zip, enumerate, reversed) else function if function is tuple else list
    if any(items is None for items in lists):
        return New(once)
    known: list[list[Value]] = [items for items in lists if items is not None]
    if function is zip:
        return New(once, [New(tuple, list(each)) for each in zip(*known, strict=False)])
    if function is enumerate:
        start = args[1] if len(args) > 1 else kwargs.get("start", Known(0))
        if not isinstance(start, Known):
            return New(once)
        return New(once, [New(tuple, [Known(start.object + position), item]) for position, item in enumerate(known[0])])
    if function is reversed:
        return New(once, known[0][::-1])
    if function is sorted:
        if kwargs or not all(isinstance(item, Known) and plain(item.object) for item in known[0]):
            raise NotReplayable(
                "sorted() with a key, or of what is not known, is not followed. Sort outside of the step; tensors with torch.sort"
            )
        return New(list, sorted(known[0], key=lambda item: item.object))  # type: ignore[missing-attribute]
    return New(once, known[0])
