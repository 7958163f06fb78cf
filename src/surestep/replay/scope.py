"""What is around a compiled call: its boundaries, and what is forbidden inside."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from surestep.loop.boundaries import boundary
from surestep.observe import frames
from surestep.observe.events import Cause
from surestep.tensor import devices

_inside = threading.local()


def inside() -> bool:
    """Whether this thread is in a compiled call: another one there is a part of it."""
    return bool(getattr(_inside, "depth", 0))


def set_custom_compile_options(options: Mapping[str, Any]) -> None:
    """XLA's own options for all programs that are built from now on; ``compile(custom_compile_options=...)`` has its own."""
    for recorder in devices.recorders():
        recorder.options = _as_tuple(options)


def _as_tuple(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(options.items()))


class GraphBreak(RuntimeError):
    """Something inside a ``compile(full_graph=True)`` would have cut its program in two."""


class Scope:
    """The boundaries around a compiled call, and what is forbidden inside."""

    def __init__(self, name: str, full_graph: bool, options: Mapping[str, Any] | None):
        self.name = name
        self.full_graph = full_graph
        self.options = None if options is None else _as_tuple(options)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """One program: a boundary before, one after, none of ``optimizer.step()``'s in between."""
        recorders = devices.recorders()
        boundary(Cause.STEP_ENTRY)
        before = [(recorder.options, recorder.sealed) for recorder in recorders]
        _inside.depth = getattr(_inside, "depth", 0) + 1
        for recorder in recorders:
            recorder.in_step += 1
            recorder.options = recorder.options if self.options is None else self.options
            if self.full_graph:
                recorder.sealed = self._refuse
        try:
            yield
        finally:
            _inside.depth -= 1
            for recorder, (_, sealed) in zip(recorders, before, strict=True):
                recorder.in_step -= 1
                recorder.sealed = sealed
            try:
                boundary(Cause.CLOSURE)
            finally:
                for recorder, (options, _) in zip(recorders, before, strict=True):
                    recorder.options = options

    def _refuse(self, cause: Cause) -> None:
        line = frames.user_line()
        what = BREAKS.get(cause, cause.value)
        where = line or "no line of yours"
        raise GraphBreak(f"{self.name} was compiled with full_graph=True, but {what} at {where}. {INSTEAD.get(cause, '')}".rstrip())


BREAKS = {
    Cause.VALUE: "a value is read",
    Cause.PRINT: "a tensor is printed",
    Cause.FALLBACK: "an operation runs on the host",
    Cause.SHAPE: "a shape depends on values",
    Cause.SYNC: "there is a sync()",
    Cause.STEP_ENTRY: "there is a step()",
    Cause.TRANSFER: "a tensor goes to another device",
    Cause.LIMIT: "too much is recorded",
}
INSTEAD = {
    Cause.VALUE: "Return the tensor and read it after the call; or use torch.where for a branch.",
    Cause.PRINT: "Return the tensor and print it after the call.",
    Cause.FALLBACK: "Write it with operations that the device has (docs/operators.md), or leave full_graph out.",
    Cause.SHAPE: "A mask (torch.where) or a fixed size (topk, padding) keeps it one program.",
    Cause.SYNC: "The end of the compiled function is a boundary: leave the sync() out.",
    Cause.STEP_ENTRY: "The compiled function is one step already: leave the step() out.",
    Cause.TRANSFER: "Move it after the call.",
    Cause.LIMIT: "Compile a smaller part.",
}
