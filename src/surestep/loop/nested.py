"""Replaces the tensors in any nesting of Python objects: batches on their way to the device, checkpoints on their way to the host."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class DataWrapper(ABC):
    """Holds what has tensors somewhere inside: a subclass says which, and makes what takes its place of others (torch_xla's class)."""

    @abstractmethod
    def get_tensors(self) -> Sequence[torch.Tensor | None]:
        """The tensors."""

    @abstractmethod
    def from_tensors(self, tensors: list[Any]) -> Any:
        """The same with those."""


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def replaced(value: Any, convert: Callable[[Any], Any], select: Callable[[Any], bool] = is_tensor) -> Any:
    """The same structure with each tensor (or what else is selected) converted, once: what was shared stays shared.

    The given structure is left as it is. Goes into mappings, lists, tuples (named ones too), sets, and objects with attributes; an object
    that holds no tensor is returned itself.
    """
    return _Replacement(convert, select).of(value)


class _Replacement:
    """Not a function that calls itself, which is a cycle: it would keep the tensors until the garbage collector comes."""

    def __init__(self, convert: Callable[[Any], Any], select: Callable[[Any], bool]):
        self.convert = convert
        self.select = select
        self.memo: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """What takes the value's place. The original is kept beside it, so that its id is nobody else's meanwhile."""
        memo = self.memo
        if id(value) not in memo:
            memo[id(value)] = (value, self.convert(value) if self.select(value) else _rebuilt(value, self.of, memo))
        return memo[id(value)][1]


def _rebuilt(value: Any, replace: Callable[[Any], Any], memo: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(value, (str, bytes, int, float, complex, type(None), type)):
        return value
    if isinstance(value, tuple):
        items = [replace(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        return _mapping(value, replace)
    if isinstance(value, list):
        return _filled(value, [replace(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return type(value)(replace(item) for item in value)
    if isinstance(value, DataWrapper):
        return value.from_tensors([replace(tensor) for tensor in value.get_tensors()])
    return _object(value, replace, memo)


def _mapping(value: Any, replace: Callable[[Any], Any]) -> Any:
    return _with_items(value, {replace(key): replace(item) for key, item in value.items()})


def replaced_items(value: Mapping[Any, Any], convert: Callable[[Any, Any], Any]) -> Any:
    """The same kind of mapping with what ``convert(key, item)`` gives in the place of each item."""
    return _with_items(value, {key: convert(key, item) for key, item in value.items()})


def _with_items(value: Any, items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    if all(items[key] is item for key, item in value.items() if key in items):
        return value
    new = copy.copy(value)  # keeps what a subclass knows besides: a default factory, a state_dict's metadata
    for key, item in items.items():
        new[key] = item
    return new


def _filled(value: list, items: list) -> Any:
    if type(value) is list:
        return items
    new = copy.copy(value)
    new[:] = items
    return new


def _object(value: Any, replace: Callable[[Any], Any], memo: dict[int, tuple[Any, Any]]) -> Any:
    attributes = getattr(value, "__dict__", None)
    if not attributes or (callable(value) and not isinstance(value, torch.nn.Module)):
        return value
    memo[id(value)] = (value, value)  # an object that holds itself
    new = {name: replace(item) for name, item in attributes.items()}
    if all(new[name] is item for name, item in attributes.items()):
        return value
    made = copy.copy(value)
    made.__dict__.update(new)
    return made
