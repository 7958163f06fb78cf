"""PyTorch's own control flow on the device: ``torch.cond``, ``while_loop``, ``scan``, ``map``, ``associative_scan``.

What arrives here are its operators, with the functions as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surestep import _compat
from surestep.control import choice, loops
from surestep.control.scan import Body, Part, rounds
from surestep.control.trees import Tree
from surestep.tensor.xla_tensor import XlaTensor


def register() -> None:
    """Tells PyTorch what its operators mean for an xla tensor."""
    functions = {"cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map}
    _compat.serve_control_flow(XlaTensor, {**functions, "associative_scan": _compat.associative_scan_as_calls})


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]) -> Any:
    return choice.cond(pred, true_fn, false_fn, operands)


def _while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Any], additional: Sequence[Any], **_: Any
) -> tuple[Any, ...]:
    return loops.while_loop(lambda *state: cond_fn(*state, *additional), lambda *state: body_fn(*state, *additional), carried)


def _scan(combine_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]) -> list[Any]:
    count = len(init)

    def round(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        result = combine_fn(*carry, *x, *additional)
        return list(result[:count]), list(result[count:])

    carry, ys = _rounds("scan", round, list(init), xs)
    return [*carry, *ys]


def _map(f: Callable[..., Any], xs: Sequence[Any], additional: Sequence[Any]) -> Any:
    return _rounds("map", lambda _, x: ((), f(*x, *additional)), (), xs)[1]


def _rounds(name: str, function: Callable[[Any, Any], Any], init: Any, xs: Sequence[Any]) -> tuple[Any, Any]:
    slices = Tree(name, "xs", list(xs))
    body = Body(name, function, slices.rebuilt, slices.structure)
    parts = [Part([tensor], False) for tensor in slices.tensors]
    return rounds(body, Tree(name, "init", init), parts, slices.tensors[0].shape[0], False, False)
