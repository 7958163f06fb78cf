"""The reviewed list of what may differ, each with its reason: exceptions.toml."""

from __future__ import annotations

import functools
import pathlib
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

FILE = pathlib.Path(__file__).with_name("exceptions.toml")


class Fault(NamedTuple):
    """What an entry did wrong in a dtype and a way: one case, in words."""

    entry: str
    dtype: str
    way: str
    of: int  # cases of this dtype and way
    words: str


class Allowed(NamedTuple):
    reason: str
    entry: re.Pattern[str]
    dtype: re.Pattern[str]
    way: re.Pattern[str]
    words: re.Pattern[str]

    def covers(self, fault: Fault) -> bool:
        exact = self.entry.fullmatch(fault.entry) and self.dtype.fullmatch(fault.dtype) and self.way.fullmatch(fault.way)
        return bool(exact and self.words.search(fault.words))


@functools.cache
def allowed() -> tuple[Allowed, ...]:
    """In the file's order; the first that covers a fault gives its reason. Patterns that are left out match all."""
    table = tomllib.loads(FILE.read_text())
    return tuple(
        Allowed(item["reason"], *(re.compile(item.get(name, ".*"), re.DOTALL) for name in ("entry", "dtype", "way", "words")))
        for item in table.get("exception", [])
    )


def faults(result: dict[str, Any]) -> Iterator[Fault]:
    """All that a result of the runner says went wrong."""
    entry = result["entry"]
    for kind in ("crash", "harness"):
        if kind in result:
            yield Fault(entry, "any", kind, 1, result[kind])
    for dtype, ways in result.get("faults", {}).items():
        for way, found in ways.items():
            count = sum(result["outcomes"][dtype][way].values())
            for words in [found] if isinstance(found, str) else found:
                yield Fault(entry, dtype, way, count, words)


def reason(fault: Fault) -> str | None:
    return next((exception.reason for exception in allowed() if exception.covers(fault)), None)


def unexplained(result: dict[str, Any]) -> list[Fault]:
    return [fault for fault in faults(result) if reason(fault) is None]
