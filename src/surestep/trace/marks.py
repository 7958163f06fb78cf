"""Where a parameter was split over the devices, and the warning for a program that puts it together again on each of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import NamedTuple

from surestep.observe.frames import Line

_SHOWN = 3  # parameters that the warning lists
_said: set[Line | None] = set()


class Mark(NamedTuple):
    """What was said of a parameter: at which line, of which shape, and by which partition spec."""

    line: Line | None
    shape: tuple[int, ...]
    spec: tuple


def say_gathered(marks: Iterable[Mark], program: Line | None) -> None:
    """Warns, once for each line that marked some of these parameters, that a program gathers them."""
    by_line: dict[Line | None, list[Mark]] = {}
    for mark in marks:
        by_line.setdefault(mark.line, []).append(mark)
    for line, found in by_line.items():
        if line in _said:
            continue
        _said.add(line)
        listed = ", ".join(f"{list(mark.shape)} by {mark.spec}" for mark in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        warnings.warn_explicit(
            f"surestep: parameters that are split at {line} are gathered whole on each device by the program that ends at {program}: "
            f"{listed}{more}. They meet tensors that are split otherwise. Let a layer's outputs and the next layer's inputs be split over "
            f"one axis ((axis, None), then (None, axis)), and leave the axis that splits the batch to the batch. If they are meant to be "
            f"gathered, as FSDP does, name the mesh's axis 'fsdp'",
            UserWarning,
            line.file if line else __file__,
            line.line if line else 0,
        )
