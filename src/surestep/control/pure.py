"""Functions that are said to be pure: recorded once for arguments of one kind, then applied without their Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from surestep.control.recording import Drawn, Outside, Recorded

_LIMIT = 64  # kinds of arguments a function


class Kept(NamedTuple):
    """A recorded function, and what its results are put into."""

    function: Recorded
    outside: Outside
    structure: Any


class Memory:
    """What was recorded of which function, for which kind of arguments; for as long as the function lives."""

    def __init__(self) -> None:
        self.kept: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Kept, tuple]]] = weakref.WeakKeyDictionary()

    def find(self, owner: Any, kind: Hashable, make: Callable[[], Kept]) -> tuple[Kept, list[Drawn]]:
        """What was recorded, or is now, by ``make``; and from where on it draws random numbers this time."""
        known = self.kept.setdefault(owner, {})
        key = (kind, modes())
        found, state = known.get(key, (None, None))
        if found is None or _state(found.outside) != state:
            found = make()
            if len(known) >= _LIMIT:
                known.clear()
            known[key] = found, _state(found.outside)
            return found, found.function.drawn
        drawn = [each._replace(seed=each.stream.seed, offset=each.stream.offset) for each in found.function.drawn]
        return found, drawn


def _state(outside: Outside) -> tuple:
    """What must stay as it is of the tensors from outside: their memory, and whether they want gradients. Not their values."""
    tensors: Any = outside.tensors.values()
    return (
        *((id(tensor._storage), tensor._layout, tensor.requires_grad) for tensor in tensors),
        *(storage.lost for storage in outside.captured),
    )


def modes() -> Hashable:
    """PyTorch's modes that change what a function records."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def advance(drawn: Sequence[Drawn], rounds: int) -> None:
    """The generators go on, as after so many rounds."""
    for each in drawn:
        each.stream.offset = each.offset + rounds * each.draws
