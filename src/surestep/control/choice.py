"""``cond``: a branch that the device takes, and gradients through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from surestep.control.applied import needed_places, saved_value
from surestep.control.captures import seen_from_around
from surestep.control.operation import Operands, operation, recorded_operation
from surestep.control.pure import advance
from surestep.control.recording import Input, Outside, Recorded, recorded
from surestep.control.trees import Tree, rebuilt, recorder_of
from surestep.execute import dtypes
from surestep.tensor import record
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout
from surestep.trace.nested import NOTHING, Kept, kept_values
from surestep.trace.recorder import LOCK, Recorder


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """``true_fn(*operands)`` or ``false_fn(*operands)``, as the device decides by ``pred``, one truth value; only one of them is run.

    Both are recorded. Gradients flow to the operands and to what the functions read from outside; for them the branch is run again.

    Raises:
        ValueError: The two results differ in structure, shapes or dtypes.
        TypeError: A leaf, or what a function returns, is no tensor on the xla device.
        RuntimeError: A function reads a value, or writes in place to its operands or to a tensor from outside.
    """
    if not isinstance(pred, torch.Tensor):
        return true_fn(*operands) if pred else false_fn(*operands)
    given, chosen = Tree("cond", "operands", tuple(operands)), Tree("cond", "pred", pred)
    with LOCK:
        branches, structure = _recorded(recorder_of("cond", given, chosen), given, (true_fn, false_fn))
        truth: Any = chosen.tensors[0].detach().reshape(()).to(torch.bool)
        if any(branch.function.differentiable for branch in branches):
            both = Both(branches)
            sinks = seen_from_around(both.sinks)
            results = list(_Chosen.apply(both, truth, len(given.tensors), *given.tensors, *sinks))
        else:
            with torch.no_grad():
                results = list(_forward(branches, truth, given.tensors))
    return rebuilt(structure, results)


class Branch(NamedTuple):
    """One of the two functions."""

    function: Recorded
    outside: Outside


def _recorded(recorder: Recorder, given: Tree, functions: Sequence[Callable[..., Any]]) -> tuple[list[Branch], Any]:
    results: list[Tree] = []
    inputs = [Input(record._dense(each.shape, each.dtype), each.requires_grad) for each in given.tensors]
    branches = []
    for users in functions:

        def run(tensors: list[torch.Tensor], users: Callable[..., Any] = users) -> list[torch.Tensor]:
            results.append(Tree("cond", "the result", users(*given.rebuilt(tensors))))
            return list(results[-1].tensors)

        branches.append(Branch(*recorded("cond", recorder, run, inputs, torch.is_grad_enabled(), users)))
        if branches[-1].function.written:
            raise RuntimeError("cond: a function writes in place to its operands, which only one of the two would do. Write to a copy")
        advance(branches[-1].function.drawn, 0)
    one, other = (branch.function for branch in branches)
    if results[0].structure != results[1].structure or one.outputs != other.outputs:
        raise ValueError(f"cond: the results must be alike. true_fn returned {results[0]}, false_fn {results[1]}")
    for each in (*one.drawn, *other.drawn):  # what is drawn afterwards doesn't hang on the branch
        each.stream.offset = max(each.stream.offset, each.offset + each.draws)
    return branches, results[0].structure


class Both:
    """What the derivatives of two branches have in common. It holds no tensors but the sinks."""

    def __init__(self, branches: Sequence[Branch]):
        self.branches = branches
        functions = [branch.function for branch in branches]
        self.wanted = functions[0].wanted or functions[1].wanted  # of the same inputs
        self.differentiable = sorted({place for function in functions for place in function.differentiable})
        self.sinks = list({id(sink): sink for branch in branches for sink in branch.outside.sinks}.values())
        self.kept = [kept_values(function.nested, 0, True) if function.differentiable else NOTHING for function in functions]
        slots = {id(sink): len(self.wanted) + number for number, sink in enumerate(self.sinks)}
        self.gives: list[tuple[int, ...]] = []
        self.gradients: dict[int, Layout] = {}
        for branch in branches:
            of_inputs = range(len(self.wanted)) if branch.function.differentiable else ()
            self.gives.append((*of_inputs, *(slots[id(sink)] for sink in branch.outside.sinks)))
            self.gradients.update(zip(self.gives[-1], branch.function.gradients, strict=True))
        self.takes = [tuple(self.differentiable.index(place) for place in function.differentiable) for function in functions]


class _Chosen(torch.autograd.Function):
    """A branch, whose gradient is another."""

    @staticmethod
    def forward(ctx: Any, both: Both, truth: XlaTensor, count: int, *tensors: Any) -> tuple[torch.Tensor, ...]:
        outputs = _forward(both.branches, truth, tensors[:count])
        captured, known = [], []
        ctx.counts = []
        for (function, outside), kept in zip(both.branches, both.kept, strict=True):
            places = needed_places(function, kept, len(outside.captured)) if function.differentiable else []
            captured += [saved_value(outside, place) for place in places]
            known += [tensor for place, tensor in outside.tensors.items() if place in kept.captured]
            ctx.counts.append(len(places))
        ctx.functions = [branch.function for branch in both.branches]
        ctx.kept, ctx.takes, ctx.gives = both.kept, both.takes, both.gives
        ctx.wanted, ctx.differentiable = both.wanted, both.differentiable
        ctx.gradients = [both.gradients[slot] for slot in range(len(both.gradients))]
        ctx.count = count
        ctx.save_for_backward(truth, *tensors[:count], *captured, *known)
        ctx.mark_non_differentiable(*(output for place, output in enumerate(outputs) if place not in both.differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[bad-override]
        if torch.is_grad_enabled():
            raise NotImplementedError("cond: the derivative of its derivative (create_graph=True) can't be recorded. Use torch.where")
        truth, *saved = ctx.saved_tensors
        operands, rest = saved[: ctx.count], iter(saved[ctx.count :])
        captured = [[next(rest) for _ in range(count)] for count in ctx.counts]
        found = iter(_backward(ctx, truth, operands, captured, [grads[place] for place in ctx.differentiable]))
        of_inputs = [next(found) if place in ctx.wanted else None for place in range(ctx.count)]
        return (None, None, None, *of_inputs, *found)


def _forward(branches: Sequence[Branch], truth: XlaTensor, tensors: Sequence[Any]) -> list[XlaTensor]:
    (one, _), (other, _) = branches

    def make() -> Any:
        from surestep.lower import control  # JAX is imported when it is first needed

        return control.cond(one.nested, other.nested, distances)

    with operation(one.recorder):
        operands = [Operands(function, function.drawn, outside.captured[: function.nested.captured]) for function, outside in branches]
        distances = [each.distances for each in operands]
        lists = [truth, *(each.lists for each in operands), list(tensors)]
        return recorded_operation("cond", [one, other], tuple(distances), lists, one.outputs, make)


def _backward(
    ctx: Any, truth: XlaTensor, operands: Sequence[Any], captured: Sequence[Sequence[Any]], cotangents: Sequence[Any]
) -> list[XlaTensor]:
    functions: list[Recorded] = ctx.functions
    kept: list[Kept] = ctx.kept
    like = [(tuple(each.sizes), dtypes.to_jax(each.dtype)) for each in ctx.gradients]

    def make() -> Any:
        from surestep.lower import control  # JAX is imported when it is first needed

        nested = [function.nested for function in functions]
        return control.cond_backward(nested, distances, kept, ctx.takes, ctx.gives, like)

    with operation(functions[0].recorder):
        given = [Operands(function, function.drawn, of_one) for function, of_one in zip(functions, captured, strict=True)]
        distances = tuple(each.distances for each in given)
        lists = [truth, *(each.lists for each in given), list(operands), list(cotangents)]
        static = (distances, tuple(kept), tuple(ctx.takes), tuple(ctx.gives))
        return recorded_operation("cond_backward", functions, static, lists, ctx.gradients, make)
