"""Metrics as a table to be read: what ``print(surestep.metrics())`` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surestep.observe.metrics import Metrics, Timing

Row = tuple[str, ...]


def text(metrics: Metrics) -> str:
    """Sections of aligned columns, each number with its unit; a section of which nothing happened is left out."""
    boundaries = [(cause.value, f"{count:,}", "implicit" if cause.implicit else "") for cause, count in metrics.boundaries.most_common()]
    sections: list[list[Row]] = [
        [
            ("training steps", f"{metrics.steps:,}", ""),
            ("programs compiled", f"{metrics.compile.count:,}", _seconds(metrics.compile)),
            ("runs of programs", f"{metrics.run.count:,}", _seconds(metrics.run)),
            ("numbers made inputs", f"{metrics.lifted:,}", ""),
            ("traces forgotten", f"{metrics.evicted:,}", ""),
        ],
        [
            ("copies", "count", "size", "time"),
            _copies("to the device", metrics.bytes_in, metrics.transfer_in),
            _copies("from the device", metrics.bytes_out, metrics.transfer_out),
        ],
        [("boundaries", "count", ""), *boundaries],
        [("implicit boundaries", "count", "at"), *_places(metrics.implicit)],
        [("host fallbacks", "count", "at"), *_places(metrics.fallbacks)],
    ]
    return "\n\n".join(_aligned(section) for section in sections if len(section) > 1)


def _copies(name: str, sizes: Timing, times: Timing) -> Row:
    return name, f"{sizes.count:,}", _bytes(sizes.total), _seconds(times)


def _seconds(timing: Timing) -> str:
    return f"{timing.total:,.2f} s"


def _bytes(number: float) -> str:
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB"):
        number /= 1000
        if number < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:,.1f} GB"


def _places(places: Counter[Any]) -> Iterable[Row]:
    return ((place.what, f"{count:,}", str(place.line or "no line of yours")) for place, count in places.most_common())


def _aligned(rows: list[Row]) -> str:
    """Names and places to the left, what is counted or measured to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [any(row[column][:1].isdigit() for row in rows) for column in range(len(widths))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    )
