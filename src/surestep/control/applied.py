"""Recorded functions applied to tensors, in rounds or once, and gradients through that: one operation forwards, one backwards.

What the derivative needs of a round is kept, as PyTorch's graph would keep it; or the round is run again with its derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from surestep.control.captures import seen_from_around
from surestep.control.counting import places
from surestep.control.operation import Operands, operation, recorded_operation
from surestep.control.recording import Drawn, Outside, Recorded
from surestep.execute import dtypes
from surestep.tensor import record
from surestep.tensor.xla_tensor import XlaTensor, fresh
from surestep.trace.layout import Layout
from surestep.trace.nested import NOTHING, Kept, kept_values, layout_of


class Application(NamedTuple):
    """How a function is applied: once where there is no ``length``, else in rounds.

    Of what it is given, the first ``carries`` go from round to round; each other is a part of a stack, which is one tensor, or as many as
    ``parts`` says.
    """

    function: Recorded
    carries: int
    parts: tuple[int, ...]
    length: int | None
    again: bool  # rounds are run again with their derivatives

    def kept(self) -> Kept:
        """What of a round is kept for its derivative."""
        return kept_values(self.function.nested, self.carries, self.again) if self.function.differentiable else NOTHING

    def stack_of(self, place: int) -> tuple[int, int]:
        """Where the tensors of an input behind the carries begin and end, among those that are given."""
        begin = self.carries + sum(count or 1 for count in self.parts[: place - self.carries])
        return begin, begin + (self.parts[place - self.carries] or 1)


def applied(application: Application, outside: Outside, tensors: Sequence[XlaTensor], drawn: Sequence[Drawn]) -> list[torch.Tensor]:
    """The function's results: the last carries, and the other results of all rounds, stacked.

    ``tensors`` are the first carries, and the stacks, flat; ``drawn`` is where the random numbers begin.
    """
    if not application.function.differentiable:
        with torch.no_grad():
            return list(_forward(application, outside, tensors, drawn, NOTHING))
    sinks = seen_from_around(outside.sinks)
    return list(_Applied.apply(application, outside, drawn, len(tensors), *tensors, *sinks))


class _Applied(torch.autograd.Function):
    """One operation, whose gradient is another. All that this takes is given back by autograd when backward is over."""

    @staticmethod
    def forward(
        ctx: Any, application: Application, outside: Outside, drawn: Sequence[Drawn], count: int, *tensors: Any
    ) -> tuple[torch.Tensor, ...]:
        function = application.function
        ctx.application, ctx.drawn = application, drawn
        ctx.shardings = _shardings(application, tensors[:count])
        ctx.kept = kept = application.kept()
        found = _forward(application, outside, tensors[:count], drawn, kept)
        outputs, saved = found[: len(function.outputs)], found[len(function.outputs) :]
        parts = []
        for place in kept.inputs:
            begin, end = application.stack_of(place)
            written = place in function.written  # by the function, which is not to be seen here
            parts += [tensor.clone() if written else tensor for tensor in tensors[begin:end]]
        captured = [saved_value(outside, place) for place in needed_places(function, kept, len(outside.captured))]
        # autograd says so if one of these is overwritten meanwhile
        known = [tensor for place, tensor in outside.tensors.items() if place in kept.captured]
        ctx.counts = len(parts), len(saved), len(captured)
        ctx.save_for_backward(*parts, *saved, *captured, *known)
        ctx.mark_non_differentiable(*(output for place, output in enumerate(outputs) if place not in function.differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[bad-override]
        application = ctx.application
        function = application.function
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{function.name}: the derivative of its derivative (create_graph=True) can't be recorded. Write the part that needs it as "
                f"a loop in Python"
            )
        waiting = iter(ctx.saved_tensors)
        parts, saved, captured = ([next(waiting) for _ in range(count)] for count in ctx.counts)
        cotangents = [grads[place] for place in function.differentiable]
        found = iter(_backward(application, parts, saved, cotangents, captured, ctx.drawn, ctx.kept, ctx.shardings))
        wanted = set(function.wanted)
        of_inputs: list[Any] = []
        for place in range(function.nested.inputs):
            begin, end = (0, 1) if place < application.carries else application.stack_of(place)
            of_inputs += [next(found) if place in wanted else None for _ in range(begin, end)]
        return (None, None, None, None, *of_inputs, *found)


def needed_places(function: Recorded, kept: Kept, count: int) -> list[int]:
    """Which of ``count`` captured storages the derivative needs."""
    return [*kept.captured, *range(function.nested.captured, count)]


def saved_value(outside: Outside, place: int) -> torch.Tensor:
    """A captured value, for the derivative. Where no tensor is known that would notice a write until then, it is a copy."""
    tensor = fresh(outside.captured[place])
    return tensor if place in outside.tensors or place in outside.local else tensor.clone()


def _forward(application: Application, outside: Outside, tensors: Sequence[Any], drawn: Sequence[Drawn], kept: Kept) -> list[XlaTensor]:
    function, carries, parts, length, _ = application
    nested = function.nested
    shardings = _shardings(application, tensors)

    def make() -> Any:
        from surestep.lower import control  # JAX is imported when it is first needed

        if length is None:
            return control.call(nested, operands.distances, kept)
        return control.scan(nested, carries, length, operands.distances, kept, shardings)

    outputs = [*function.outputs[:carries], *(_stacked(each, length) for each in function.outputs[carries:])]
    outputs += [_stacked(each, length) for each in _layouts(function, kept)]
    with operation(function.recorder):
        operands = Operands(function, drawn, outside.captured[: nested.captured])
        stacks = _grouped(tensors[carries:], parts)
        given = [stacks] if length is None else [list(tensors[:carries]), stacks]
        static = (carries, length, kept, operands.distances, shardings)
        return recorded_operation("call" if length is None else "scan", [function], static, [*operands.lists, *given], outputs, make)


def _backward(
    application: Application,
    parts: Sequence[Any],
    saved: Sequence[Any],
    cotangents: Sequence[Any],
    captured: Sequence[XlaTensor],
    drawn: Sequence[Drawn],
    kept: Kept,
    shardings: tuple,
) -> list[XlaTensor]:
    function, carries, sizes, length, _ = application
    nested, wanted, given = function.nested, function.wanted, function.differentiable
    like = [(tuple(each.sizes), dtypes.to_jax(each.dtype)) for each in function.gradients]

    def make() -> Any:
        from surestep.lower import control  # JAX is imported when it is first needed

        if length is None:
            return control.call_backward(nested, operands.distances, kept, like)
        return control.scan_backward(nested, carries, sizes, wanted, given, length, operands.distances, kept, like, shardings)

    outputs: list[Layout] = []
    for place, each in zip(wanted, function.gradients, strict=False):
        size = 0 if place < carries else sizes[place - carries]
        outputs += [each] * size if size else [each if place < carries else _stacked(each, length)]
    outputs += function.gradients[len(wanted) :]
    with operation(function.recorder):
        operands = Operands(function, drawn, captured)
        stacks = _grouped(parts, [sizes[place - carries] for place in kept.inputs])
        lists = [*operands.lists, stacks, list(saved), list(cotangents)]
        if length is not None:
            listed = any(sizes[place - carries] for place in wanted if place >= carries)
            lists.append(places(function.recorder, length) if listed else [])
        static = (carries, length, kept, operands.distances, tuple(wanted), tuple(given), tuple(sizes), shardings)
        name = "call_backward" if length is None else "scan_backward"
        return recorded_operation(name, [function], static, lists, outputs, make)


def _shardings(application: Application, tensors: Sequence[Any]) -> tuple:
    """Under SPMD: how each of the stacks that are several tensors lies over the devices, if those were all marked alike."""
    if not application.function.recorder.spread:
        return (None,) * len(application.parts)
    found = []
    for stack in _grouped(tensors[application.carries :], application.parts):
        marked = {_marked(tensor) for tensor in stack} if isinstance(stack, list) else {None}
        found.append(marked.pop() if len(marked) == 1 else None)
    return tuple(found)


def _marked(tensor: XlaTensor) -> Any:
    return tensor._storage.sharding if tensor._layout is tensor._storage.layout else None


def _grouped(tensors: Sequence[Any], parts: Sequence[int]) -> list[Any]:
    """The stacks: a tensor, or a list of them, one a round."""
    waiting = iter(tensors)
    return [[next(waiting) for _ in range(count)] if count else next(waiting) for count in parts]


def _stacked(layout: Layout, length: int | None) -> Layout:
    return layout if length is None else record._dense((length, *layout.sizes), layout.dtype)


def _layouts(function: Recorded, kept: Kept) -> list[Layout]:
    """Of the values that are kept."""
    nested = function.nested
    found = {}
    for each, at in zip(nested.records, nested.positions, strict=False):
        for result in range(each.results):
            found[at.value + result] = layout_of(each, result)
    layouts = [found[index] for index in kept.values]
    return [_SEED if each is None else record._dense(each.sizes, each.dtype) for each in layouts]


_SEED = record._dense((2,), torch.int64)
