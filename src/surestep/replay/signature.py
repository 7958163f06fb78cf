"""The arguments of a call: what must be the same for the same program, and the tensors that may be others."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from surestep.replay.instances import is_named_tuple
from surestep.replay.values import Argument, New, NotReplayable, Value, plain
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import layout
from surestep.trace.operands import LIST, Mark, add_constant

_TENSOR, _HOST, _OBJECT, _DICT, _NAMED, _FIELDS, _ENDLESS = map(
    Mark, ("tensor", "host tensor", "object", "dict", "named", "fields", "endless")
)


class Arguments:
    """A call's arguments, taken apart. ``key`` is equal for calls that differ in the values of tensors only, and in where views begin."""

    __slots__ = ("host", "key", "objects", "tensors")

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self.tensors: list[XlaTensor] = []
        self.host: list[torch.Tensor] = []
        self.objects: list[Any] = []  # others, by identity; kept, so that their identities stay theirs
        key: list[Any] = []
        try:
            for value in args:
                self._add(key, value)
            for name, value in kwargs.items():
                key.append(_NAMED)
                key.append(name)
                self._add(key, value)
        except RecursionError:  # one holds itself: `as_values` refuses it
            key = [_ENDLESS]
            self.tensors.clear()
        self.key = tuple(key)

    def _add(self, key: list[Any], value: Any) -> None:
        kind = type(value)
        if kind is XlaTensor:
            lies, whole = value._layout, value._storage.layout
            if lies is not whole:  # a view, `data[i]`: where it begins is looked at later
                lies = layout(lies.sizes, lies.strides, 0, lies.dtype)
            key += (_TENSOR, lies, whole, value.requires_grad)
            self.tensors.append(value)
        elif kind is list or kind is tuple:
            key += (LIST, kind, len(value))
            for item in value:
                self._add(key, item)
        elif kind is dict:
            key += (_DICT, len(value))
            for name, item in value.items():
                self._add(key, name)
                self._add(key, item)
        elif is_named_tuple(kind):
            key += (LIST, kind, len(value))
            for item in value:
                self._add(key, item)
        elif _is_record(kind):
            key += (_FIELDS, kind, len(vars(value)))
            for name, item in vars(value).items():
                key.append(name)
                self._add(key, item)
        elif kind is torch.Tensor and value.device.type == "cpu":
            key += (_HOST, value.shape, value.stride(), value.dtype, value.requires_grad)
            self.host.append(value)
        elif kind in (int, float, bool, str, complex, type(None)):
            add_constant(key, value)
        else:
            key += (_OBJECT, id(value))
            self.objects.append(value)


@functools.cache
def _is_record(kind: type) -> bool:
    """Whether objects of a class are no more than their attributes: data classes, so that another one with the same is as good."""
    bases = all(each is object or dataclasses.is_dataclass(each) for each in kind.__mro__)
    return bases and kind.__setattr__ is object.__setattr__ and not any("__slots__" in vars(each) for each in kind.__mro__[:-1])


def as_values(args: tuple, kwargs: dict[str, Any]) -> tuple[list[Value], dict[str, Value]]:
    """The arguments as the walk through the code takes them. Raises ``NotReplayable`` where one holds itself."""
    try:
        return [_value(value, f"argument {position}") for position, value in enumerate(args)], {
            name: _value(value, f"argument {name}") for name, value in kwargs.items()
        }
    except RecursionError:
        raise NotReplayable("an argument holds itself (a list, a dict or a data class). Pass its parts") from None


def _value(value: Any, path: str) -> Value:
    kind = type(value)
    if kind is list or (kind is tuple and not plain(value)):
        return New(kind, [_value(item, f"{path}[{position}]") for position, item in enumerate(value)], owned=False)
    if kind is dict:
        return New(dict, {name: _value(item, f"{path}[{name!r}]") for name, item in value.items()}, owned=False)
    if is_named_tuple(kind):
        return New(kind, [_value(item, f"{path}.{name}") for name, item in zip(kind._fields, value, strict=True)], owned=False)
    if _is_record(kind):
        return New(kind, {name: _value(item, f"{path}.{name}") for name, item in vars(value).items()}, owned=False)
    return Argument(value, path)


def described(key: tuple, other: tuple) -> str:
    """How two calls' arguments differ, in words."""
    for position, (one, two) in enumerate(zip(key, other, strict=False)):
        if one is not two and one != two:
            return f"an argument was {_shown(one)}, and is {_shown(two)} (entry {position} of the signature)"
    return "there is another number of arguments" if len(key) != len(other) else "the arguments are alike"


def _shown(value: Any) -> str:
    sizes = getattr(value, "sizes", None)
    return f"{str(value.dtype).removeprefix('torch.')}{list(sizes)}" if sizes is not None else repr(value)
