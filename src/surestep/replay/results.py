"""What a call returns, taken apart into leaves, and made anew: PyTorch's trees, and objects of the user's classes that the call made."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

from torch.utils._pytree import TreeSpec, register_pytree_node, tree_flatten

from surestep.replay.values import NotReplayable


class _Object:
    """An object of a user's class, by its attributes and, if it is a dict, its entries."""

    def __init__(self, kind: Any, own: dict[str, Any], entries: dict[Any, Any] | None):
        self.kind = kind
        self.own = own
        self.entries = entries


def _make(parts: Any, kind: Any) -> Any:
    """The object anew, without its class's Python: that has run when the call was recorded, and was followed."""
    own, entries = parts
    made = kind.__new__(kind)
    for name, value in own.items():
        object.__setattr__(made, name, value)
    base = OrderedDict if isinstance(made, OrderedDict) else dict
    for key, value in (entries or {}).items():
        base.__setitem__(made, key, value)
    return made


register_pytree_node(_Object, lambda taken: ([taken.own, taken.entries], taken.kind), _make)


def flatten(result: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of what a call returned, and how ``tree_unflatten`` makes the like of it.

    Raises ``NotReplayable`` where a list, dict or object is in two places: it would be two.
    """
    return tree_flatten(_apart(result, set()))


def _apart(result: Any, seen: set[int]) -> Any:
    kind = type(result)
    made = dataclasses.is_dataclass(kind) or (isinstance(result, dict) and kind.__module__ not in ("builtins", "collections"))
    if isinstance(result, (list, dict)) or made:
        if id(result) in seen:
            raise NotReplayable(f"the step returns a {kind.__name__} that is in two places. Return a copy in one of them")
        seen.add(id(result))
    if made:
        own = {name: _apart(value, seen) for name, value in _attributes(result).items()}
        entries = {key: _apart(value, seen) for key, value in dict.items(result)} if isinstance(result, dict) else None
        return _Object(kind, own, entries)
    if kind in (dict, OrderedDict):
        return kind((key, _apart(value, seen)) for key, value in result.items())
    if kind is list:
        return [_apart(value, seen) for value in result]
    if isinstance(result, tuple):
        return tuple.__new__(kind, [_apart(value, seen) for value in result])
    return result


def _attributes(made: Any) -> dict[str, Any]:
    slots = [name for kind in type(made).__mro__ for name in getattr(kind, "__slots__", ()) if name != "__dict__" and hasattr(made, name)]
    return {**{name: getattr(made, name) for name in slots}, **getattr(made, "__dict__", {})}
