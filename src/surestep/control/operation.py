"""One operation of a trace that is made of functions recorded as traces of their own: a loop, a branch, a call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from surestep.control.recording import Drawn, Recorded
from surestep.tensor import record
from surestep.tensor.xla_tensor import XlaTensor, fresh
from surestep.trace.layout import Layout
from surestep.trace.nested import Nested
from surestep.trace.operands import LIFTED_FLOAT, LIFTED_INT, LIST, HostScalar, Mark, Ref, ref
from surestep.trace.recorder import LOCK, Recorder
from surestep.trace.records import Call
from surestep.trace.storage import Storage

_marks: dict[str, Mark] = {}


class Operands:
    """A function's operands in the trace around it: numbers, seeds, and what it reads from outside; nested in lists.

    Made inside of ``operation``.
    """

    def __init__(self, function: Recorded, drawn: Sequence[Drawn], captured: Sequence[Storage | XlaTensor]):
        recorder = function.recorder
        seeds = [recorder.seed(each.stream.number, each.seed, each.offset) for each in drawn]
        self.distances = tuple(distance for _, distance in seeds)
        host = function.of_host  # these numbers are others at the next call, which who replays must know
        self.lists: list[Any] = [
            [HostScalar.of(torch.float64) if host else LIFTED_FLOAT] * len(function.floats),
            [HostScalar.of(torch.int64) if host else LIFTED_INT] * len(function.ints),
            [value for value, _ in seeds],
            list(captured),
        ]


def key_of(nested: Nested) -> tuple:
    """What tells two functions apart whose traces end at the same place."""
    return nested.split, nested.inputs, nested.captured, nested.outputs, nested.gradients, nested.draws


@contextmanager
def operation(recorder: Recorder) -> Generator[None]:
    """Around the recording of one operation."""
    with LOCK:
        if recorder.count >= recorder.limit:
            recorder.check_limit()
        try:
            yield
        except BaseException:
            recorder.repair()
            raise


def recorded_operation(
    name: str,
    functions: Sequence[Recorded],
    static: tuple,
    arguments: list[Any],
    outputs: Sequence[Layout],
    make: Callable[[], Callable[..., Any]],
) -> list[XlaTensor]:
    """Records ``make()``'s function over arrays as one operation, inside of ``operation``; gives its results.

    ``arguments`` are tensors, storages, seeds' values and marks of numbers, nested in lists. What else the function depends on is
    ``static``, and the traces of ``functions``.
    """
    recorder = functions[0].recorder
    figures: dict[Ref, tuple] = {}
    refs = [_refs(recorder, argument, figures) for argument in arguments]
    same: tuple = (name, *(part for each in functions for part in (each.place, *key_of(each.nested))), *static)
    key: list[Any] = [_marks.get(name) or _marks.setdefault(name, Mark(name)), *same]
    _add(key, refs)
    exact = tuple(key)
    edge = recorder.place.edges.get(exact)
    if edge is None:
        edge = recorder.exact(exact, lambda: (_call(name, functions, same, refs, figures, outputs, make), None))
    for each in functions:
        recorder.floats.extend(each.floats)
        recorder.ints.extend(each.ints)
    index = recorder.take(edge).index
    results = []
    for place, layout in enumerate(outputs):
        storage = Storage(recorder, layout)
        recorder.define(storage, ref(index + place))
        results.append(fresh(storage))
    return results


def _refs(recorder: Recorder, argument: Any, figures: dict[Ref, tuple]) -> Any:
    if isinstance(argument, list):
        return [_refs(recorder, item, figures) for item in argument]
    if isinstance(argument, XlaTensor):
        value, layout = record.value_of(recorder, argument), argument._layout
    elif isinstance(argument, Storage):
        value, layout = recorder.value(argument), argument.layout
    elif isinstance(argument, Ref):
        figures[argument] = ((2,), torch.int64)  # a seed
        return argument
    else:
        return argument
    figures[value] = (layout.sizes, layout.dtype)
    return value


def _add(key: list[Any], refs: Any) -> None:
    if isinstance(refs, list):
        key.append(LIST)
        key.append(len(refs))
        for item in refs:
            _add(key, item)
    else:
        key.append(refs)


def _call(
    name: str,
    functions: Sequence[Recorded],
    same: tuple,
    refs: list[Any],
    figures: dict[Ref, tuple],
    outputs: Sequence[Layout],
    make: Callable[[], Callable[..., Any]],
) -> Call:
    from surestep.lower.body import traced  # JAX is imported when it is first needed

    built = functions[0].place.programs
    key = (*same, tuple(_shapes(refs, figures)))
    body = built.get(key)
    if body is None:
        body = built[key] = traced(make(), refs, figures)
    return Call(name, tuple(refs), {}, tuple(outputs), False, False, None, body, len(outputs))


def _shapes(refs: Any, figures: dict[Ref, tuple]) -> Any:
    if isinstance(refs, list):
        yield len(refs)
        for item in refs:
            yield from _shapes(item, figures)
    else:
        yield figures.get(refs, refs)
