"""The environment variables that surestep reads: their names, values and meaning, in one place.

To add one, add a line to ``SETTINGS`` and the line that ``tests/test_settings.py`` then asks for in docs/settings.md; read it where it is
needed with ``value("SURESTEP_NAME")``, or ``on("SURESTEP_NAME")`` where its values are 0 and 1. It may change while the program runs.
"""

from __future__ import annotations

import difflib
import os
import warnings
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """What a variable may be, its default first, and what it does."""

    values: tuple[str, ...]
    meaning: str


SETTINGS = {
    "SURESTEP_CHECK_BOUNDS": Setting(
        ("0", "1"),
        "with 1, an index that is out of range on the device is an IndexError at the next boundary; read when the device is first used",
    ),
    "SURESTEP_CHECK_REPLICAS": Setting(
        ("1", "0"), "with 1, processes that train together compare their parameters now and then; those that differ are an error"
    ),
    "SURESTEP_FALLBACK": Setting(("warn", "error"), "an operation that has to run on the host is said once a line, or is an error"),
    "SURESTEP_HOST_KERNELS": Setting(
        ("1", "0"),
        "with 1, programs on the CPU call PyTorch's kernels where those were measured faster; read when a program is compiled",
    ),
    "SURESTEP_KEEP_MEMORY": Setting(
        ("0", "1"),
        "with 1, memory that programs on the CPU have freed is kept for the next: large steps take less time, small ones more; read when "
        "the device is first used",
    ),
    "SURESTEP_VERIFY_REPLAY": Setting(("0", "1"), "with 1, each replayed step of `surestep.compile` is run in Python too, and compared"),
}


_RAW: Any = os.environ._data  # type: ignore[missing-attribute] (a plain dict, with keys as the system has them)


def value(name: str) -> str:
    """A variable's value, its default where it isn't set; ``ValueError`` for one that it can't have."""
    values = SETTINGS[name].values
    if os.environ.encodekey(name) not in _RAW:  # type: ignore[missing-attribute] (each replayed step asks, and this is quick)
        return values[0]
    found = os.environ.get(name) or values[0]
    if found not in values:
        raise ValueError(f"{name}={found}: it can be {' or '.join(values)} (not set: {values[0]}); {SETTINGS[name].meaning}")
    return found


def on(name: str) -> bool:
    """Whether a variable of 0 and 1 is 1."""
    return value(name) == "1"


def check() -> None:
    """Says what is wrong with the variables that are set: an error for a value, a warning for a name that surestep doesn't know."""
    for name in os.environ:
        if name in SETTINGS:
            value(name)
        elif name.startswith("SURESTEP_"):
            near = difflib.get_close_matches(name, SETTINGS, 1, 0)
            warnings.warn(f"{name} has no effect: surestep has no such setting. The nearest is {near[0]}", stacklevel=3)
