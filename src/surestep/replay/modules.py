"""Calls of modules: PyTorch's own are taken as a whole, with all their attributes guarded; the user's ``forward`` is followed."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules import module as _module
from torch.optim.swa_utils import AveragedModel

from surestep.control.assume import PureModule
from surestep.replay import attributes, instances
from surestep.replay.known import named, refusal
from surestep.replay.values import Known, New, NotReplayable, Value, plain

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
# Modules that compute on the host, or keep Python state.
_NOT_WHOLE = (torch.nn.SyncBatchNorm, torch.nn.modules.lazy.LazyModuleMixin)


def is_library(thing: Any) -> bool:
    """Whether a module is one of PyTorch's own, or of a class that adds nothing to one."""
    base = next((kind for kind in type(thing).__mro__ if kind.__module__.startswith("torch.nn.")), None)
    if base is None or isinstance(thing, _NOT_WHOLE):
        return False
    for kind in type(thing).__mro__[: type(thing).__mro__.index(base)]:
        for name, held in vars(kind).items():
            if name not in _HARMLESS and (not isinstance(held, types.FunctionType) or hasattr(base, name) or _has(thing, name)):
                return False
    return True


# What a user's class may say anew without a change to what its `forward` does.
_HARMLESS = {"__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__", "__annotations__"}
_HARMLESS |= {"__init__", "__repr__", "extra_repr", "reset_parameters"}


def _has(module: Any, name: str) -> bool:
    own = vars(module)
    return any(name in table for table in (own, own["_parameters"], own["_buffers"], own["_modules"]))


def call(walk: Any, module: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module(...)``"""
    thing = module.object
    kind = type(thing)
    attributes.in_class(walk, kind, "__call__")
    if kind.__call__ is not torch.nn.Module.__call__:
        return _followed(walk, kind.__call__, module, args, kwargs)
    walk.guards.type(thing)
    inner = attributes.held(walk, torch.nn.Module, "_call_impl")
    if not attributes.is_library(inner):
        raise NotReplayable("torch.nn.Module._call_impl was replaced, and isn't followed")
    _no_hooks(walk, module)
    if kind is PureModule:
        return call(walk, Known(attributes.children(walk, module)["_module"], f"{module.path}._module"), args, kwargs)
    if attributes.held(walk, kind, "forward") is torch.nn.Sequential.forward and "forward" not in vars(thing) and not kwargs:
        walk.guards.lacks(vars(thing), "forward", module.path)
        return _in_turn(walk, module, args)
    forward = attributes.attribute(walk, module, "forward")
    function = attributes.unbound(forward.object)[0] if isinstance(forward, Known) else None
    if isinstance(function, types.FunctionType) and attributes.is_library(function):
        _guard_functions(walk, kind, function, set())
        return _whole(walk, module, args, kwargs)
    from surestep.replay import calls

    return calls.call(walk, forward, args, kwargs)


def _guard_functions(walk: Any, kind: type, function: types.FunctionType, seen: set[Any]) -> None:
    """What one of PyTorch's modules calls of ``torch.nn.functional``, which is where libraries put functions of their own."""
    seen.add(function)
    for name in function.__code__.co_names:
        used = vars(F)[name] if name in vars(F) else getattr(kind, name, None)
        if name in vars(F):
            if isinstance(used, types.FunctionType) and not attributes.is_library(used):
                raise NotReplayable(f"torch.nn.functional.{name} was replaced, and {kind.__name__} calls it, where it isn't followed")
            walk.guards.item(vars(F), name, used, "torch.nn.functional.")
        if isinstance(used, types.FunctionType) and used not in seen and used.__module__.startswith("torch.nn."):
            _guard_functions(walk, kind, used, seen)


def _followed(walk: Any, function: Any, module: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from surestep.replay import calls

    return calls.call(walk, Known(function, f"{module.path}.__call__"), [module, *args], kwargs)


def _no_hooks(walk: Any, module: Known) -> None:
    own = vars(module.object)
    for name in _HOOKS:
        if own[name]:
            raise NotReplayable(f"{module} has hooks ({name}), whose Python must run at each call")
        walk.guards.item(own, name, own[name], f"{module.path}.")
        walk.guards.none(own[name], f"{module.path}.{name}")
    _no_global_hooks(walk)
    if own.get("_compiled_call_impl") is not None:
        raise NotReplayable(f"{module} was compiled by module.compile()")


def _no_global_hooks(walk: Any) -> None:
    for name in _GLOBAL_HOOKS:
        hooks = getattr(_module, name)
        if hooks:
            raise NotReplayable("there are hooks on all modules, whose Python must run at each call")
        walk.guards.none(hooks, name)


def _says_itself(walk: Any, module: Known, names: Iterable[str]) -> None:
    """Raises where a class of the user's has a method by which PyTorch asks for the module's parts; guarded."""
    for kind in type(module.object).__mro__:
        if attributes.trusted(kind.__module__):
            break
        names_ = walk.guards.of_class(kind)
        walk.guards.count(names_, kind.__name__)
        own = next((name for name in names if name in names_), None)
        if own is not None:
            raise NotReplayable(f"{kind.__name__}.{own}() says in Python what the module's parts are. Give it another name")


_OF_TREES = ("named_modules", "modules", "named_children", "children")
_OF_PARTS = ("named_parameters", "parameters", "named_buffers", "buffers", "_named_members")


def _in_turn(walk: Any, module: Known, args: list[Value]) -> Value:
    _says_itself(walk, module, ("__iter__",))
    (value,) = args
    for name, child in attributes.children(walk, module).items():
        value = call(walk, Known(child, f"{module.path}[{name}]"), [value], {})
    return value


def _whole(walk: Any, module: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """One of PyTorch's own modules."""
    from surestep.replay import calls

    guard_whole(walk, module)
    return calls.computed(walk, args, kwargs, isinstance(module.object, torch.nn.Identity))


def guard_whole(walk: Any, module: Known) -> None:
    """All that a module's ``forward`` could read: its attributes, parameters, buffers and children."""
    thing = module.object
    if not is_library(thing):
        raise NotReplayable(f"{module} (a {type(thing).__name__}) is called by one of PyTorch's modules, and not followed there")
    walk.guards.type(thing)
    walk.guards.order(type(thing))
    for kind in type(thing).__mro__:
        if attributes.trusted(kind.__module__):
            break
        walk.guards.count(walk.guards.of_class(kind), kind.__name__)  # what it gets could hide an attribute or a method of PyTorch's
    _no_hooks(walk, module)
    own = vars(thing)
    walk.guards.count(own, module.path)
    for name, value in own.items():
        if name.startswith("_") and name not in ("_parameters", "_buffers", "_modules", "_flat_weights", "_qkv_same_embed_dim"):
            continue
        walk.guards.item(own, name, value, f"{module.path}.")
        if name in ("_parameters", "_buffers"):
            guard_tensors(walk, value, module.path)
        elif name == "_modules":
            if value:
                walk.guards.whole(value, module.path)
            for key, child in value.items():
                if child is not None:
                    guard_whole(walk, Known(child, f"{module.path}.{key}"))
        else:
            _guard_attribute(walk, value, f"{module.path}.{name}")


def guard_tensors(walk: Any, entries: dict[str, torch.Tensor | None], path: str) -> None:
    """A module's parameters or buffers."""
    if entries:
        walk.guards.whole(entries, path)
    for name, tensor in entries.items():
        if tensor is not None:
            walk.guards.tensor(tensor, f"{path}.{name}")


def _guard_attribute(walk: Any, value: Any, path: str) -> None:
    if plain(value) or value is None:
        return
    if isinstance(value, torch.Tensor):
        walk.guards.tensor(value, path)
    elif isinstance(value, (list, tuple, dict)):
        attributes.guard_content(walk, Known(value, path))
    elif isinstance(value, torch.nn.Module):
        guard_whole(walk, Known(value, path))
    elif not (isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and attributes.is_library(value)):
        raise NotReplayable(f"{path} (a {type(value).__name__}) is used by one of PyTorch's modules")


def _tree(walk: Any, module: Known, recurse: bool = True, prefix: str = "") -> list[tuple[str, Known]]:
    """A module and its descendants, guarded as a tree."""
    found = [(prefix, module)]
    _says_itself(walk, module, _OF_TREES)
    if recurse:
        for name, child in attributes.children(walk, module).items():
            if child is not None:
                found += _tree(walk, Known(child, f"{module.path}.{name}"), True, f"{prefix}{name}.")
    return found


def _parts(walk: Any, module: Known, table: str) -> dict[str, Known]:
    """All parameters or buffers, each once."""
    found: dict[str, Known] = {}
    seen: set[int] = set()
    _says_itself(walk, module, _OF_PARTS)
    for prefix, part in _tree(walk, module):
        entries = vars(part.object)[table]
        guard_tensors(walk, entries, part.path)
        for name, tensor in entries.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found[prefix + name] = Known(tensor, f"{part.path}.{name}")
    return found


def method(walk: Any, receiver: Known, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A method that PyTorch gives modules; None where it is the user's own, to be followed."""
    if not isinstance(function, types.FunctionType) or not attributes.is_library(function):
        return None
    name = function.__name__
    if name == "forward":
        return _whole(walk, receiver, args, kwargs)
    if name in ("_call_impl", "_wrapped_call_impl", "__call__"):
        return call(walk, receiver, args, kwargs)
    if name in ("parameters", "buffers", "named_parameters", "named_buffers") and not args and not kwargs:
        parts = _parts(walk, receiver, "_parameters" if "parameters" in name else "_buffers")
        once = types.GeneratorType
        if name.startswith("named"):
            return New(once, [New(tuple, [Known(key), part]) for key, part in parts.items()])
        return New(once, list(parts.values()))
    if name in ("children", "modules") and not args:
        tree = [part for _, part in _tree(walk, receiver)]
        direct = [Known(child, f"{receiver.path}.{key}") for key, child in attributes.children(walk, receiver).items()]
        return New(types.GeneratorType, tree if name == "modules" else direct)
    if name == "named_children":
        named_ = attributes.children(walk, receiver).items()
        return New(types.GeneratorType, [New(tuple, [Known(key), Known(child, f"{receiver.path}.{key}")]) for key, child in named_])
    if name == "__getattr__" and isinstance(args[0], Known):
        return attributes.of_module(walk, receiver, args[0].object)
    if name == "zero_grad":
        _parts(walk, receiver, "_parameters")
        return Known(None)
    if name == "update_parameters" and type(receiver.object) is AveragedModel and isinstance(args[0], Known):
        return _averaged(walk, receiver, args[0])
    if name == "state_dict" and not args and not kwargs:
        return _state_dict(walk, receiver)
    if name == "requires_grad_":
        wanted = args[0] if args else kwargs.get("requires_grad", Known(True))
        parts = _parts(walk, receiver, "_parameters").values()
        if not isinstance(wanted, Known) or any(part.object.requires_grad is not bool(wanted.object) for part in parts):
            raise NotReplayable(f"{receiver}.requires_grad_() changes what the parameters want. Call it before the step")
        return receiver
    if name in ("train", "eval"):
        return _mode(walk, receiver, name, args, kwargs)
    raise NotReplayable(f"{receiver}.{name}() is not known to do the same at each call")


def _averaged(walk: Any, receiver: Known, model: Known) -> Value:
    """``AveragedModel.update_parameters``"""
    from surestep.replay import calls

    own = vars(receiver.object)
    count = own["_buffers"]["n_averaged"]
    if not isinstance(model.object, torch.nn.Module) or not hasattr(count, "_storage"):
        raise NotReplayable(f"{receiver}'s count is on the CPU until its first update")
    for part in (receiver, model):
        for table in ("_parameters", "_buffers"):
            _parts(walk, part, table)
    for name in ("use_buffers", "multi_avg_fn", "avg_fn"):
        walk.guards.item(own, name, own[name], f"{receiver.path}.")
    function = own["multi_avg_fn"] or own["avg_fn"]
    if function is not None and not (isinstance(function, types.FunctionType) and attributes.is_library(function)):
        kind = list if own["multi_avg_fn"] else torch.Tensor
        calls.call(walk, Known(function, f"{receiver.path}'s function"), [New(kind), New(kind), New(torch.Tensor)], {})
    return Known(None)


def _state_dict(walk: Any, receiver: Known) -> Value:
    """``module.state_dict()``: tensors over the parameters' and buffers' memory."""
    found: dict[str, Value] = {}
    for prefix, part in _tree(walk, receiver):
        own, kind = vars(part.object), type(part.object)
        walk.guards.type(part.object)
        for name in ("_state_dict_hooks", "_state_dict_pre_hooks"):
            if own[name]:
                raise NotReplayable(f"{part} has hooks ({name}), whose Python must run at each call")
            walk.guards.none(own[name], f"{part.path}.{name}")
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state"):
            if attributes.held(walk, kind, name) is not vars(torch.nn.Module)[name]:
                raise NotReplayable(f"{part} makes its state_dict in a way of its own")
        passing = own["_non_persistent_buffers_set"]
        walk.guards.item(own, "_non_persistent_buffers_set", passing, f"{part.path}.")
        walk.guards.members(passing, f"{part.path}._non_persistent_buffers_set")
        for table in ("_parameters", "_buffers"):
            guard_tensors(walk, own[table], part.path)
            for name, tensor in own[table].items():
                if tensor is not None and name not in passing:
                    found[prefix + name] = walk.known(tensor.detach(), f"{part.path}.{name}")
    return New(dict, found)


def _mode(walk: Any, receiver: Known, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``train()`` and ``eval()``, where they change nothing."""
    given = args[0] if args else kwargs.get("mode", Known(True))
    if not isinstance(given, Known):
        raise NotReplayable(f"{receiver}.{name}() with a mode that is not known")
    wanted = name == "train" and bool(given.object)
    for _, part in _tree(walk, receiver):
        own = vars(part.object)
        walk.guards.type(part.object)
        own_mode = attributes.held(walk, type(part.object), "train") is not torch.nn.Module.train
        if own_mode and part.object is not receiver.object:
            raise NotReplayable(f"{part} has a train() of its own, whose Python must run at each call")
        if own["training"] is not wanted:
            raise NotReplayable(f"{receiver}.{name}() changes the module's mode. Call it before the step")
        walk.guards.item(own, "training", wanted, f"{part.path}.")
    return receiver


def library(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """Functions of PyTorch's, torch_xla's and ours that call what they are given; None where it isn't one of them."""
    import torch.utils.checkpoint

    from surestep.loop.boundaries import add_step_closure
    from surestep.loop.optimizer import optimizer_step
    from surestep.replay import actions, calls, control, optimizers

    follow = control.follower(function)
    if follow is not None:
        return follow(walk, *args, **kwargs)
    if function is torch.utils.checkpoint.checkpoint:
        if "context_fn" in kwargs:
            raise NotReplayable("checkpoint(context_fn=...) runs Python of its own")
        options = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn", "early_stop"}
        return calls.call(walk, args[0], args[1:], {name: value for name, value in kwargs.items() if name not in options})
    if function is optimizer_step:
        return optimizers.reduced_step(walk, args, kwargs)
    if function in (dataclasses.fields, dataclasses.is_dataclass) and len(args) == 1 and isinstance(args[0], (Known, New)):
        of = args[0].type if isinstance(args[0], New) else args[0].object
        return Known(function(of), f"the fields of {args[0]}")
    if function is add_step_closure:
        return actions.step_closure(walk, args, kwargs)
    if function is torch.autograd.backward:
        return calls.computed(walk, args, kwargs)
    inner = getattr(function, "__wrapped__", None)
    if function.__module__ == "torch.amp.autocast_mode" and inner is not None:  # custom_fwd, custom_bwd, @autocast
        return calls.call(walk, Known(inner, named(inner)), args, kwargs)
    return None


def autograd_function(walk: Any, kind: Known, args: list[Value]) -> Value:
    """``Function.apply``: its forward is followed, and its backward, which PyTorch calls later."""
    from surestep.replay import calls

    context = New(object, None)
    split = kind.object.setup_context is not torch.autograd.Function.setup_context
    forward = attributes.attribute(walk, kind, "forward")
    calls.call(walk, forward, args if split else [context, *args], {})
    if split:
        calls.call(walk, attributes.attribute(walk, kind, "setup_context"), [context, New(tuple), New()], {})
    backward = attributes.attribute(walk, kind, "backward")
    function = backward.object if isinstance(backward, Known) else None
    if isinstance(function, types.FunctionType):
        function = getattr(function, "__wrapped__", function)  # once_differentiable
        count = max(1, function.__code__.co_argcount - 1)
        calls.call(walk, Known(function, named(function)), [context, *[New(torch.Tensor)] * count], {})
    return New()


def construct(walk: Any, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new object. Only of classes whose making does nothing else."""
    from surestep.replay import calls

    if kind in (torch.Size, torch.device, torch.dtype):
        return calls.computed(walk, args, kwargs)
    if kind in (torch.finfo, torch.iinfo):
        known = all(isinstance(value, Known) and plain(value.object) for value in args)
        return Known(kind(*(value.object for value in args))) if known else New(object, None)  # type: ignore[missing-attribute]
    if issubclass(kind, BaseException):
        return New(object, {})
    if issubclass(kind, torch.nn.modules.loss._Loss) and kind.__module__ == "torch.nn.modules.loss":
        _no_global_hooks(walk)
        calls.computed(walk, args, kwargs)
        return New(kind, [])
    if issubclass(kind, torch.nn.Module):
        raise NotReplayable(f"a new {kind.__name__} is made at each call. Make it once, outside of the step")
    if attributes.trusted(kind.__module__):
        raise refusal(kind)
    return instances.construct(walk, kind, args, kwargs)
