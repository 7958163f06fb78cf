"""Parameters of which each process holds a part: gathered where they are asked for, their gradients reduced to parts again.

To gather is an operation of autograd, whose backward is a reduce-scatter. So nothing has to watch a backward pass: a gradient that reaches
the whole parameter is reduced on its way to the part. And as all is recorded into one program, nothing has to be freed: a whole parameter
lives in it from the gathering to its last use. That would be in the backward pass, for which autograd saves it. Where memory counts, a note
is saved in its place, by which it is gathered again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from surestep import _compat
from surestep.parallel.collectives import Members, all_gather, reduce_scatter
from surestep.parallel.shards import Cut
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout

_forward: list[Unit] = []  # the units whose forward pass this is, from the outermost on


def in_pass() -> bool:
    """Whether this is a forward pass of some unit, or a backward pass."""
    return bool(_forward) or _compat.backward_pass() != -1


class _Gathered(NamedTuple):
    """The whole parameters of a unit, for as long as they are to be the same ones."""

    during: int  # which backward pass; -1 outside
    padded: tuple[torch.Tensor, ...]
    wholes: list[torch.Tensor]
    versions: list[int]  # of the parts


class _Note(NamedTuple):
    """What is saved in place of a whole parameter, or a view of it."""

    unit: Unit
    position: int
    layout: Layout
    version: int


class Unit:
    """Parts that are gathered together, and whose gradients are reduced together: one collective each way, for small parameters.

    Args:
        parts: This process's parts, as parameters.
        cuts: How each was cut.
        members: The processes among which they are cut.
        compute: The dtype of the whole parameters.
        reduce: The dtype in which gradients are reduced.
    """

    def __init__(
        self, parts: Sequence[torch.nn.Parameter], cuts: Sequence[Cut], members: Members, compute: torch.dtype, reduce: torch.dtype
    ):
        self.parts = list(parts)
        self.cuts = list(cuts)
        self.members = members
        self.compute = compute
        self.reduce = reduce
        self.before, self.after = 1.0, float(members.size)  # gradients are divided by these, before and after they are added up
        self.reduces = True  # else gradients are kept whole, and added to the next that are reduced
        self.kept: list[torch.Tensor | None] = [None] * len(self.parts)
        self._gathered: _Gathered | None = None
        self.after_these: Sequence[torch.Tensor] = ()

    def whole(self, position: int) -> torch.Tensor:
        """One of the whole parameters, in the order of the cuts; gathered if it isn't there."""
        return self._there().wholes[position]

    @contextmanager
    def forward(self, again: bool, after: Sequence[torch.Tensor]) -> Generator[None]:
        """A forward pass: its whole parameters are gathered once, when the tensors ``after`` have been computed. Without these XLA may
        gather the parameters of all units at the beginning. ``again`` if the backward pass shall gather them again.

        In a backward pass (a checkpoint computes again) what is saved is used at once, so that nothing is gathered a third time.
        """
        _forward.append(self)
        self.after_these, before = after, self.after_these
        try:
            if again and torch.is_grad_enabled() and _compat.backward_pass() == -1:
                saved = _Saved(self)
                with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                    yield
            else:
                yield
        finally:
            _forward.pop()
            self.after_these = before
            if self not in _forward and self._gathered is not None and self._gathered.during == -1:
                self._gathered = None

    def _there(self) -> _Gathered:
        during = _compat.backward_pass()
        found = self._gathered
        if found is not None and found.during == during:
            return found
        with torch.enable_grad():
            padded = _Gather.apply(self, *self.parts)
            wholes = [whole for cut, value in zip(self.cuts, padded, strict=True) for whole in cut.wholes(value)]
        found = _Gathered(during, padded, wholes, [part._version for part in self.parts])
        if during != -1:
            self._gathered = found
            _compat.at_end_of_backward(self.forget)
        elif self in _forward:
            self._gathered = found
        return found

    def forget(self) -> None:
        """Lets go of the whole parameters."""
        self._gathered = None

    def note(self, tensor: torch.Tensor) -> _Note | None:
        """What to save in place of a tensor that is (a view of) a whole parameter of these."""
        if self._gathered is None or not isinstance(tensor, XlaTensor):
            return None
        for position, value in enumerate(self._gathered.padded):
            if value._storage is tensor._storage and value.dtype == tensor.dtype:  # type: ignore[missing-attribute]
                return _Note(self, position, tensor._layout, self._gathered.versions[position])
        return None

    def noted(self, note: _Note) -> torch.Tensor:
        """The tensor that a note stands for."""
        if self.parts[note.position]._version != note.version:
            shapes = [list(shape) for shape in self.cuts[note.position].shapes]
            raise RuntimeError(
                f"backward needs sharded parameters (of shapes {shapes}) as they were in the forward pass, and they have been changed "
                f"since: call backward before optimizer.step()"
            )
        padded = self._there().padded[note.position].detach()
        return padded.as_strided(note.layout.sizes, note.layout.strides, note.layout.offset)

    def reduced(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """This process's parts of the mean of padded gradients; none while they are only kept."""
        for position, gradient in enumerate(gradients):
            if gradient is not None and self.parts[position].requires_grad:
                before = self.kept[position]
                self.kept[position] = gradient if before is None else before + gradient
        results: list[torch.Tensor | None] = [None] * len(self.parts)
        if not self.reduces:
            return results
        there = [position for position, gradient in enumerate(self.kept) if gradient is not None]
        given = [gradient.to(self.reduce) for gradient in self.kept if gradient is not None]
        if self.before != 1.0:
            given = [gradient / self.before for gradient in given]
        parts = reduce_scatter("sum", given, 0, self.members, 1 / self.after)
        for position, part in zip(there, parts, strict=True):
            results[position] = part.to(self.parts[position].dtype)
            self.kept[position] = None
        return results


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit: Unit, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        found = tuple(all_gather([part.to(unit.compute) for part in parts], 0, unit.members, unit.after_these))
        ctx.mark_non_differentiable(*(value for value, part in zip(found, parts, strict=True) if not part.requires_grad))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[bad-override] (the decorator's type says nothing of the arguments)
        return None, *ctx.unit.reduced(gradients)


class _Saved:
    """Saves notes in place of a unit's parameters, and all else as it would have been saved without."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.outer: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None = _compat.saved_tensors_hooks()

    def pack(self, tensor: torch.Tensor) -> Any:
        return self.unit.note(tensor) or (self.outer[0](tensor) if self.outer else tensor)

    def unpack(self, saved: Any) -> Any:
        if isinstance(saved, _Note):
            return saved.unit.noted(saved)  # which may be of a unit around this one
        return self.outer[1](saved) if self.outer else saved
