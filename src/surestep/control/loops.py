"""Loops whose number of rounds the device decides: no value is read for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from surestep.control.operation import Operands, operation, recorded_operation
from surestep.control.recording import Input, Outside, Recorded, recorded
from surestep.control.scan import check_carry
from surestep.control.trees import Tree, described, recorder_of
from surestep.tensor import record
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.recorder import LOCK


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """``carried = body_fn(*carried)`` while ``cond_fn(*carried)`` is true, which the device decides; gives the last ``carried``.

    Both functions are recorded and compiled once. They may read tensors from outside. Random numbers are others in each round, though not
    those of a loop in Python. There is no gradient, since how many rounds there are isn't known when they would be kept.

    Raises:
        ValueError: The carried tensors change their structure, shapes or dtypes; or the condition isn't one truth value.
        TypeError: A leaf, or what a function returns, is no tensor on the xla device.
        RuntimeError: Gradients would have to flow; or a function reads a value, or writes in place to a tensor from outside.
    """
    init = Tree("while_loop", "carried_inputs", tuple(carried_inputs))
    recorder = recorder_of("while_loop", init)

    def condition(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        truth = cond_fn(*init.rebuilt(tensors))
        if not isinstance(truth, torch.Tensor) or truth.numel() != 1 or truth.dtype is not torch.bool:
            raise ValueError(
                f"while_loop: cond_fn must return one truth value, a bool tensor of one element; it returned {described(truth)}"
            )
        return [truth.reshape(())]

    def body(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        result = body_fn(*init.rebuilt(tensors))
        carry = Tree("while_loop", "the carry", tuple(result) if isinstance(result, (tuple, list)) else (result,))
        check_carry("while_loop", init, carry)
        return list(carry.tensors)

    with LOCK:
        inputs = [Input(record._dense(each.shape, each.dtype), each.requires_grad) for each in init.tensors]
        functions = [
            recorded("while_loop", recorder, each, inputs, torch.is_grad_enabled(), users)
            for each, users in ((condition, cond_fn), (body, body_fn))
        ]
        if functions[1][0].differentiable:
            raise RuntimeError(
                "while_loop: a carried tensor, or one that body_fn reads, wants a gradient, and the number of rounds isn't known. Use "
                "scan, which has as many rounds as xs has slices, or call it under torch.no_grad()"
            )
        results = _operation(functions, init.tensors)
    return tuple(init.rebuilt(results))


def _operation(functions: Sequence[tuple[Recorded, Outside]], tensors: Sequence[XlaTensor]) -> list[Any]:
    (condition, _), (body, _) = functions

    def make() -> Any:
        from surestep.lower import control  # JAX is imported when it is first needed

        return control.while_loop(condition.nested, body.nested, distances)

    with torch.no_grad(), operation(body.recorder):
        operands = [Operands(function, function.drawn, outside.captured[: function.nested.captured]) for function, outside in functions]
        distances = [each.distances for each in operands]
        lists = [*(each.lists for each in operands), list(tensors)]
        return recorded_operation("while_loop", [condition, body], tuple(distances), lists, body.outputs, make)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: Any) -> tuple[Any, ...]:
    """``input_value = body_fun(*input_value)``, ``upper - lower`` times; gives what is left of that count, 0, and the last values.

    The bounds are numbers, or tensors of one integer on the device, which decides then how often. ``body_fun`` takes and gives the values
    only, not the count. As ``while_loop`` otherwise.
    """
    values = Tree("fori_loop", "input_value", input_value)
    count = upper - lower
    if not isinstance(count, torch.Tensor):
        count = torch.tensor(count, device=values.tensors[0].device)

    def body(left: torch.Tensor, *carried: Any) -> tuple[Any, ...]:
        result = body_fun(*carried)
        return left - 1, *(result if isinstance(result, (tuple, list)) else (result,))

    return while_loop(lambda left, *carried: left > 0, body, (count, *input_value))
