"""``scan``: a function over the slices of tensors, with a carry from one to the next, compiled once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from surestep.control.applied import Application, applied
from surestep.control.pure import Kept, Memory, advance
from surestep.control.recording import Input, Recorded, recorded
from surestep.control.trees import Tree, rebuilt, recorder_of
from surestep.tensor import record
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.recorder import LOCK, Recorder

_memory = Memory()


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] | None = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Runs ``carry, y = fn(carry, x)`` over the slices of ``xs`` along their first dimension; gives the last carry and the ys, stacked.

    The function's operations are recorded and compiled once, whatever the number of slices. Gradients flow to ``init``, ``xs`` and to what
    the function reads from outside (parameters); random numbers are those of the loop in Python.

    Args:
        fn: Takes a carry and slices, returns the next carry and a result; all of them tensors, nested as you like. It may overwrite the
            carry that it is given, but no other tensor from outside.
        init: The first carry. Each carry has its structure, shapes and dtypes.
        xs: Tensors of the same first size, nested as you like.
        partition_fn: What is kept for the backward pass: all that PyTorch's graph would keep (None, or ``functorch.compile``'s
            ``default_partition``), or only the carries, with ``fn`` computed again (``min_cut_rematerialization_partition``).
        is_fn_pure: ``fn`` does the same for tensors of the same shapes: its Python is run at the first call only.

    Raises:
        ValueError: ``fn`` isn't callable; ``xs`` have no, or several first sizes; the carry changes; another ``partition_fn``.
        TypeError: A leaf, or what ``fn`` returns, is no tensor on the xla device.
        RuntimeError: ``fn`` reads a value, or writes in place to a tensor from outside.
    """
    if not callable(fn):
        raise ValueError(f"scan: fn must be callable, not {fn!r}")
    slices = Tree("scan", "xs", xs)
    lengths = {path: tensor.shape[0] if tensor.ndim else None for path, tensor in zip(slices.paths, slices.tensors, strict=True)}
    if not lengths:
        raise ValueError("scan: xs has no tensors, so that the number of rounds isn't known")
    if None in lengths.values() or len(set(lengths.values())) > 1:
        said = ", ".join(f"{path} of shape {list(tensor.shape)}" for path, tensor in zip(slices.paths, slices.tensors, strict=True))
        raise ValueError(f"scan: all of xs must have the same first size, the number of rounds: {said}")
    parts = [Part([tensor], False) for tensor in slices.tensors]
    body = Body("scan", fn, lambda tensors: slices.rebuilt(tensors), slices.structure)
    return rounds(body, Tree("scan", "init", init), parts, slices.tensors[0].shape[0], computes_again("scan", partition_fn), is_fn_pure)


class Part(NamedTuple):
    """What a round is given a slice of: one tensor, or as many of one shape as there are rounds."""

    tensors: Sequence[XlaTensor]
    listed: bool

    @property
    def input(self) -> Input:
        """What the function is given."""
        first = self.tensors[0]
        sizes = first._layout.sizes if self.listed else first._layout.sizes[1:]
        return Input(record._dense(sizes, first._layout.dtype), any(tensor.requires_grad for tensor in self.tensors))


class Body(NamedTuple):
    """The function of a round."""

    name: str
    function: Callable[[Any, Any], Any]  # of a carry and what `built` gives
    built: Callable[[Sequence[torch.Tensor]], Any]
    structure: Any  # what `built` builds
    owner: Any = None  # for how long a pure function is remembered; the function, where None
    fixed: int | None = None  # so many parts may not be overwritten; all, where None


def computes_again(name: str, partition_fn: Callable[..., Any] | None) -> bool:
    """Whether rounds are computed again for their derivative; told by the function's name, as importing functorch's takes seconds."""
    called = "default_partition" if partition_fn is None else getattr(partition_fn, "__name__", None)
    if called not in ("default_partition", "min_cut_rematerialization_partition"):
        raise ValueError(
            f"{name}: partition_fn={partition_fn!r} is for graphs of AOTAutograd, which there are none of here. It may be "
            f"functorch.compile.default_partition, or min_cut_rematerialization_partition, which computes each round again for its "
            f"derivative"
        )
    return called != "default_partition"


def rounds(body: Body, init: Tree, parts: Sequence[Part], length: int, again: bool, pure: bool) -> tuple[Any, Any]:
    """The last carry, and what the rounds gave besides."""
    recorder = recorder_of(body.name, init, *(Tree(body.name, "xs", list(part.tensors)) for part in parts))

    def make() -> Kept:
        return _recorded(body, recorder, init, [part.input for part in parts], length)

    with LOCK:
        if pure:
            carried = tuple(Input(record._dense(each.shape, each.dtype), each.requires_grad) for each in init.tensors)
            slices = tuple(part.input for part in parts)
            kind = (init.structure, carried, body.structure, slices, recorder.device, length < 2)
            (function, outside, structure), drawn = _memory.find(body.owner or body.function, kind, make)
        else:
            function, outside, structure = make()
            drawn = function.drawn
        advance(drawn, length)
        sizes = tuple(len(part.tensors) if part.listed else 0 for part in parts)
        application = Application(function, len(init.tensors), sizes, length, again)
        tensors = [*init.tensors, *(tensor for part in parts for tensor in part.tensors)]
        results = applied(application, outside, tensors, drawn)
    carries = len(init.tensors)
    return init.rebuilt(results[:carries]), rebuilt(structure, results[carries:])


def _recorded(body: Body, recorder: Recorder, init: Tree, parts: Sequence[Input], length: int) -> Kept:
    """Records one round. A carry wants a gradient if the first does, or if what it becomes does."""
    wants = [tensor.requires_grad for tensor in init.tensors]
    structure: list[Any] = []

    def function(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        result = body.function(init.rebuilt(tensors[: len(wants)]), body.built(tensors[len(wants) :]))
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(
                f"{body.name}: fn must return two things, the next carry and a result (or None); it returned a {type(result).__name__}"
            )
        carry, ys = Tree(body.name, "the carry", result[0]), Tree(body.name, "the result", result[1])
        check_carry(body.name, init, carry)
        structure[:] = [ys.structure]
        return [*carry.tensors, *ys.tensors]

    while True:
        inputs = [Input(record._dense(each.shape, each.dtype), wants[place]) for place, each in enumerate(init.tensors)]
        found, outside = recorded(body.name, recorder, function, [*inputs, *parts], torch.is_grad_enabled(), body.function)
        more = [place for place in found.differentiable if place < len(wants) and not wants[place]]
        if not more or length < 2:
            break
        advance(found.drawn, 0)
        for place in more:
            wants[place] = True
    _check_slices(body, found, len(wants))
    return Kept(found, outside, structure[0])


def check_carry(name: str, init: Tree, carry: Tree) -> None:
    """``ValueError`` where what a round gives isn't what the next takes."""
    if carry.structure != init.structure:
        raise ValueError(f"{name}: the carry must keep its structure. init is {init}, and fn returned {carry}")
    for path, before, after in zip(init.paths, init.tensors, carry.tensors, strict=True):
        if before.shape != after.shape or before.dtype is not after.dtype:
            where = path.removeprefix("init")
            raise ValueError(
                f"{name}: the carry must keep its shapes and dtypes. init{where} is {_figures(before)}, and what fn returned for it is "
                f"{_figures(after)}"
            )


def _figures(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _check_slices(body: Body, function: Recorded, carries: int) -> None:
    fixed = function.nested.inputs if body.fixed is None else carries + body.fixed
    written = [place - carries for place in function.written if carries <= place < fixed]
    if written:
        raise RuntimeError(
            f"{body.name}: the function writes in place to its slice of xs (leaf {written[0]}), which would not change xs. Write to a "
            f"copy: x = x.clone()"
        )
