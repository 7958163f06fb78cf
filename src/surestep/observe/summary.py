"""The short summary at the end of `surestep run`: how much was compiled and run, and what cost more than it had to, with its line."""

from __future__ import annotations

import os
from collections import Counter

from surestep.observe.metrics import Metrics, Place

_SHOWN = 8  # lines of a list; the rest is counted


def lines(metrics: Metrics) -> list[str]:
    """The summary as plain lines."""
    found = [
        f"{_count(metrics.steps, 'step')}, {_count(metrics.run.count, 'run')} in {metrics.run.total:.2f} s, "
        f"{_count(metrics.compile.count, 'program')} compiled in {metrics.compile.total:.2f} s"
    ]
    implicit = metrics.implicit.total()
    found.append(f"{_count(implicit, 'implicit boundary', 'implicit boundaries')}{':' if implicit else ''}")
    found += _places(metrics.implicit)
    fallbacks = metrics.fallbacks.total()
    found.append(f"{_count(fallbacks, 'host fallback')}{':' if fallbacks else ''}")
    found += _places(metrics.fallbacks)
    return found


def _places(places: Counter[Place]) -> list[str]:
    common = places.most_common(_SHOWN)
    found = [f"  {count} x {place.what}, at {_short(place)}" for place, count in common]
    if len(places) > _SHOWN:
        rest = places.total() - sum(count for _, count in common)
        found.append(f"  {rest} more, at {len(places) - _SHOWN} other places")
    return found


def _short(place: Place) -> str:
    if place.line is None:
        return "no line of the script"
    path = os.path.relpath(place.line.file) if os.path.isabs(place.line.file) else place.line.file
    return f"{place.line.file if path.startswith('..') else path}:{place.line.line}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def show(metrics: Metrics) -> None:
    """Prints the summary on stderr: nothing if the device wasn't used, plain text where that is no terminal."""
    if not metrics.run.count and not metrics.bytes_in.count:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    first, *rest = lines(metrics)
    console.print(Text("surestep: ", style="bold"), Text(first), sep="")
    for line in rest:
        noted = line.endswith(":") or line.startswith("  ")
        console.print(Text(f"          {line}", style="yellow" if noted else "dim"))
