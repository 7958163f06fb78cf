"""Assignments: to the call's own names and objects, to tensors, and to places where a tensor is kept."""

from __future__ import annotations

import ast
import types
from typing import Any

import torch

from surestep.replay import attributes, expressions, instances
from surestep.replay.guards import Appended
from surestep.replay.values import Known, New, NotReplayable, Value


def store(walk: Any, frame: Any, target: ast.expr, value: Value, in_place: bool = False) -> None:
    """``target = value``. Names are the call's own; what else is written to must be the call's own too, or a tensor."""
    if isinstance(target, ast.Name):
        frame.names = {**frame.names, target.id: value}
    elif isinstance(target, (ast.Tuple, ast.List)):
        _unpack(walk, frame, target, value)
    elif isinstance(target, ast.Subscript):
        container = expressions.evaluate(walk, frame, target.value)
        if expressions.is_tensor(container):
            expressions.evaluate(walk, frame, target.slice)
        elif not in_place:
            key = expressions.evaluate(walk, frame, target.slice)
            if not _kept(walk, frame, target, container, key, value):
                expressions.set_item(walk, container, key, value)
    elif isinstance(target, ast.Attribute):
        holder = expressions.evaluate(walk, frame, target.value)
        name = expressions.mangled(frame, target.attr)
        if isinstance(holder, New) and instances.is_instance(holder) and not in_place:
            instances.store(walk, holder, name, value)
            return
        own = isinstance(holder, New) and holder.owned and holder.type is object
        if in_place and isinstance(holder, Known) and not isinstance(holder.object, torch.Tensor) and not _simple(holder.object, name):
            raise NotReplayable(f"`{ast.unparse(target)}` is stored by the object's own code")
        if not in_place and not own and not _kept_attribute(walk, frame, target, holder, name, value):
            _refuse_attribute(walk, frame, target, value, holder)
    else:
        raise walk.refuse(frame, target, f"`{ast.unparse(target)}` is not followed as a target")


def _kept(walk: Any, frame: Any, target: ast.expr, container: Value, key: Value, value: Value) -> bool:
    """``last[0] = loss``: a tensor of this call that is kept in a list or dict from outside. A replay keeps its own there."""
    if walk.branches or not isinstance(container, Known) or type(container.object) not in (list, dict):
        return False
    if (
        not isinstance(value, New)
        or value.type not in (None, torch.Tensor)
        or not isinstance(key, Known)
        or type(key.object) not in (int, str)
    ):
        return False
    walk.guards.keep(container.object, key.object, frame.file, target.lineno)
    walk.kept[id(container.object), key.object] = value  # which is what the call finds there from now on
    return True


def appended(walk: Any, container: list[Any], args: list[Value]) -> bool:
    """``losses.append(loss)``: the same at the end of a list, where a replay appends its own."""
    if walk.branches or len(args) != 1 or not isinstance(args[0], New) or args[0].type not in (None, torch.Tensor):
        return False
    number = sum(held is container and type(key) is Appended for held, key in walk.guards.kept.values())
    walk.guards.keep(container, Appended(number), *walk.line)
    return True


def _kept_attribute(walk: Any, frame: Any, target: ast.expr, holder: Value, name: str, value: Value) -> bool:
    """``walk.loss = loss``: the same for a plain attribute."""
    if walk.branches or not isinstance(holder, Known) or not isinstance(value, New) or value.type not in (None, torch.Tensor):
        return False
    if not _simple(holder.object, name) or name not in getattr(holder.object, "__dict__", ()):
        return False
    walk.guards.type(holder.object)
    if isinstance(holder.object, torch.nn.Module):  # which would put it there, if the name stood there
        for table in ("_parameters", "_buffers", "_modules"):
            walk.guards.item(vars(holder.object), table, vars(holder.object)[table], f"{holder}.")
            walk.guards.lacks(vars(holder.object)[table], name, f"{holder}.{table}")
    for each in (name, "__setattr__"):
        attributes.in_class(walk, type(holder.object), each)
    walk.guards.keep(vars(holder.object), name, frame.file, target.lineno)
    walk.kept[id(vars(holder.object)), name] = value
    return True


def _simple(thing: Any, name: str) -> bool:
    """Whether setting an attribute only puts it into the object's ``__dict__``."""
    kind = type(thing)
    return kind.__setattr__ in _PLAINLY and not hasattr(kind, name)


_PLAINLY = (object.__setattr__, torch.nn.Module.__setattr__, types.SimpleNamespace.__setattr__)


def _refuse_attribute(walk: Any, frame: Any, target: ast.Attribute, value: Value, holder: Value) -> None:
    text = ast.unparse(target)
    if expressions.is_tensor(holder) and target.attr == "grad" and isinstance(value, Known) and value.object is None:
        return  # what zero_grad does: the gradients are looked at after the call
    if expressions.is_tensor(holder):
        raise walk.refuse(
            frame, target, f"{text} is set, which changes what the tensor is. Write it in place under torch.no_grad() (`{text}.copy_(...)`)"
        )
    if expressions.is_tensor(value):
        raise walk.refuse(
            frame,
            target,
            f"{text} keeps a tensor of this call in a way that is not followed. Return it, or write it in place (`{text}.copy_(...)`)",
        )
    raise walk.refuse(
        frame,
        target,
        f"{text} is changed: Python's state must be the same at each call. Keep it in a tensor, or change it outside of the step",
    )


def _unpack(walk: Any, frame: Any, target: ast.Tuple | ast.List, value: Value) -> None:
    items = attributes.iterate(walk, value)
    starred = [position for position, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
    if items is None:
        for each in target.elts:
            inner = each.value if isinstance(each, ast.Starred) else each
            store(walk, frame, inner, New(list) if isinstance(each, ast.Starred) else attributes.element(walk, value))
        return
    if starred:
        middle = starred[0]
        after = len(target.elts) - middle - 1
        items = [*items[:middle], New(list, items[middle : len(items) - after]), *items[len(items) - after :]]
    if len(items) != len(target.elts):
        raise NotReplayable("the number of values to unpack is wrong")
    for each, item in zip(target.elts, items, strict=True):
        store(walk, frame, each.value if isinstance(each, ast.Starred) else each, item)
