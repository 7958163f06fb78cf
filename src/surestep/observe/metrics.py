"""Counters and timings, fed by the stream of events from the first one on."""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from surestep.observe import table
from surestep.observe.events import Cause, Event, listen
from surestep.observe.frames import Line

_KEPT = 1024  # samples of each timing, as torch_xla keeps them: percentiles and rates are over these


class Place(NamedTuple):
    """What happened (a cause, an operation), and at which of the user's lines."""

    what: str
    line: Line | None


@dataclass
class Timing:
    """A quantity that is sampled: how often, its sum, and the last samples as (seconds since the epoch, value)."""

    count: int = 0
    total: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, value: float) -> None:
        """One more sample, taken now."""
        self.count += 1
        self.total += value
        self.samples.append((time.time(), value))

    def copy(self) -> Timing:
        """The same, of its own."""
        return Timing(self.count, self.total, self.samples.copy())


@dataclass(repr=False)
class Metrics:
    """What the device has done since the process began, or since ``clear_metrics()``. Times are in seconds, sizes in bytes.

    ``print`` shows a table; ``to_dict`` gives plain data.
    """

    compile: Timing = field(default_factory=Timing)  # one sample a program: lowering and compilation
    run: Timing = field(default_factory=Timing)  # one sample a run: until the program is started, or done where the platform waits
    transfer_in: Timing = field(default_factory=Timing)  # seconds
    transfer_out: Timing = field(default_factory=Timing)
    bytes_in: Timing = field(default_factory=Timing)
    bytes_out: Timing = field(default_factory=Timing)
    values: Timing = field(default_factory=Timing)  # recorded values a program
    boundaries: Counter[Cause] = field(default_factory=Counter)
    implicit: Counter[Place] = field(default_factory=Counter)  # boundaries that the user didn't write
    fallbacks: Counter[Place] = field(default_factory=Counter)  # operations that ran on the host
    empty: Counter[Cause] = field(default_factory=Counter)  # boundaries that the user wrote where nothing was left to run
    replays: int = 0  # runs of a compiled step without its Python; they count as runs and as steps
    lifted: int = 0  # numbers that became inputs of a program on their second value
    evicted: int = 0  # how often the traces known so far were forgotten, to stay within bounds

    _last_step: Place | None = field(default=None, repr=False)  # an optimizer's boundary that may turn out to be the user's own

    def __repr__(self) -> str:
        return f"<Metrics: {self.steps} steps, {self.run.count} runs, {self.compile.count} programs>"

    def __str__(self) -> str:
        return table.text(self)

    @property
    def steps(self) -> int:
        """Training steps: ends of ``step()`` and of compiled functions, and of ``optimizer.step()`` outside one. Where there are none: next
        batches, else syncs.
        """
        count = self.boundaries
        own = count[Cause.STEP] + count[Cause.CLOSURE] + count[Cause.OPTIMIZER_STEP] + self.replays
        return own or count[Cause.LOADER] or count[Cause.SYNC]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "steps": self.steps,
            "programs": self.compile.count,
            "compile_seconds": self.compile.total,
            "runs": self.run.count,
            "run_seconds": self.run.total,
            "replays": self.replays,
            "transfers_in": self.bytes_in.count,
            "bytes_in": int(self.bytes_in.total),
            "transfers_out": self.bytes_out.count,
            "bytes_out": int(self.bytes_out.total),
            "lifted": self.lifted,
            "evicted": self.evicted,
            "boundaries": {cause.value: count for cause, count in self.boundaries.items()},
            "implicit_boundaries": _listed(self.implicit, "cause"),
            "fallbacks": _listed(self.fallbacks, "operation"),
        }

    def flat(self) -> dict[str, float]:
        """One number a name, as experiment trackers want it: ``{"xla/programs": 2, ...}``."""
        found = {f"xla/{name}": value for name, value in self.to_dict().items() if isinstance(value, (int, float))}
        return found | {"xla/implicit_boundaries": self.implicit.total(), "xla/fallbacks": self.fallbacks.total()}

    def _add(self, event: Event) -> None:
        data = event.data
        match event.name:
            case "compile":
                self.compile.add(data["lower_seconds"] + data["compile_seconds"])
            case "replay":
                self.replays += 1
                self.run.add(data["seconds"])
            case "boundary":
                cause = data["cause"]
                self.boundaries[cause] += 1
                self.run.add(data["seconds"])
                self.values.add(data["values"])
                if cause is not Cause.REPLICAS:  # which comes between a step and its sync()
                    self._last_step = None
                if cause.implicit:
                    place = Place(cause.value, event.line)
                    self.implicit[place] += 1
                    if cause is Cause.OPTIMIZER_STEP:
                        self._last_step = place
            case "nothing_pending":
                self.empty[data["cause"]] += 1
                # optimizer.step(), then sync(): what the first has run is what the user asked the second for
                if self._last_step is not None:
                    self.implicit[self._last_step] -= 1
                    self.implicit += Counter()  # drops zeros
                    self._last_step = None
            case "fallback":
                self.fallbacks[Place(data["operation"], event.line)] += 1
            case "transfer_in" | "transfer_out":
                getattr(self, event.name).add(data.get("seconds", 0.0))
                getattr(self, event.name.replace("transfer", "bytes")).add(data["nbytes"])
            case "lifted":
                self.lifted += 1
            case "evicted":
                self.evicted += 1


def _listed(places: Counter[Place], what: str) -> list[dict[str, Any]]:
    return [{what: place.what, "line": str(place.line) if place.line else None, "count": count} for place, count in places.most_common()]


_lock = threading.Lock()
_current = Metrics()


def _collect(event: Event) -> None:
    with _lock:
        _current._add(event)


def metrics() -> Metrics:
    """The counters and timings as they are now: a copy, which later steps don't change."""
    with _lock:
        copied = copy.copy(_current)
        for name, value in vars(_current).items():
            if isinstance(value, (Timing, Counter)):
                setattr(copied, name, value.copy())
        return copied


def clear_metrics() -> None:
    """Starts counting anew."""
    global _current
    with _lock:
        _current = Metrics()


listen(_collect)
