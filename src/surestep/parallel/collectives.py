"""Collectives on tensors, recorded as operations of the trace: they are part of the one program that a step is.

Where this process is alone none of them is recorded; each is what it is for one.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from surestep.execute.interrupts import Held
from surestep.execute.world import replica
from surestep.observe import frames
from surestep.observe.events import Cause
from surestep.parallel import agreement
from surestep.parallel.agreement import Note
from surestep.tensor import devices, record
from surestep.tensor.xla_tensor import XlaTensor, fresh
from surestep.trace.layout import Layout
from surestep.trace.operands import LIFTED_FLOAT, LIST, Mark, Ref, add_constant, ref
from surestep.trace.recorder import LOCK, Recorder
from surestep.trace.records import Collective
from surestep.trace.storage import Storage

REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")

Groups = Sequence[Sequence[int]] | None


class Message(NamedTuple):
    """What one process sends to another; both have a tensor of one shape and dtype."""

    source: int
    target: int
    tensor: torch.Tensor


_posted: list[Message] = []  # of which this process is the source or the target, and that nobody has waited for yet
_marks: dict[str, Mark] = {}


class Members:
    """Who takes part: all processes, in groups or not, or ``only`` some, of which the others don't know (a sub-group of torch's)."""

    __slots__ = ("group", "groups", "met", "position", "size")

    def __init__(self, groups: Groups = None, only: Sequence[int] | None = None):
        place = replica()
        everybody = tuple(range(place.size))
        if only is not None and tuple(only) != everybody:
            self.met = tuple(sorted(only))
            self.groups: tuple[tuple[int, ...], ...] | None = _beside(tuple(only), place.size)
            self.group = tuple(only)
        else:
            self.met = everybody
            self.groups = _checked(groups, place.size)
            self.group = everybody if self.groups is None else next(group for group in self.groups if place.rank in group)
        self.size = len(self.group)
        self.position = self.group.index(place.rank) if place.rank in self.group else -1


def _checked(groups: Groups, size: int) -> tuple[tuple[int, ...], ...] | None:
    if not groups:
        return None
    try:
        found = tuple(tuple(int(ordinal) for ordinal in group) for group in groups)
    except (TypeError, ValueError):
        raise TypeError(f"groups={groups!r} must be lists of replicas' ordinals, as in [[0, 1], [2, 3]]") from None
    named = sorted(ordinal for group in found for ordinal in group)
    if named and not 0 <= named[0] <= named[-1] < size:
        raise ValueError(f"groups={[list(group) for group in found]} name replicas that aren't there: there are {size}, from 0 on")
    if named != list(range(size)):
        raise ValueError(f"groups={[list(group) for group in found]} must name each of the {size} replicas, once")
    if len({len(group) for group in found}) > 1:
        raise ValueError(f"groups={[list(group) for group in found]} must all have the same size")
    return None if found == (tuple(range(size)),) else found


def _beside(members: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """XLA wants to hear of groups for all; those that don't take part run no such program, so that any will do for them."""
    others = [rank for rank in range(size) if rank not in members]
    if len(others) % len(members):
        raise NotImplementedError(
            f"a group of {len(members)} of {size} processes: the size of a group must divide the number of processes so far"
        )
    return (members, *(tuple(others[start : start + len(members)]) for start in range(0, len(others), len(members))))


def together(
    name: str,
    tensors: Sequence[torch.Tensor],
    options: tuple[Any, ...],
    members: Members,
    sizes: Sequence[Sequence[int]] | None = None,
    scale: float = 1.0,
    into: Sequence[torch.Tensor] | None = None,
    after: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Records a collective over tensors; its results are new tensors, or are written to those of ``into``.

    ``options`` are constants on which the processes must agree, without the groups. ``sizes`` are the results', where they are others than
    the operands'. It begins when the tensors ``after`` have been computed.
    """
    if not tensors:
        return []
    if name != "send":
        deliver()
    for tensor in tensors:
        if not isinstance(tensor, XlaTensor):
            raise TypeError(f"{name}: a tensor on {tensor.device}; collectives are on tensors of the xla device. Move it with .to('xla')")
    with LOCK, torch.no_grad():
        recorder: Recorder = tensors[0]._storage.trace  # type: ignore[missing-attribute] (an XlaTensor, as was seen)
        if recorder.count >= recorder.limit:
            recorder.check_limit()
        try:
            return _recorded(recorder, name, tensors, (*options, members.groups), members, sizes, scale, into, after)
        except BaseException:
            recorder.repair()
            raise


def _recorded(
    recorder: Recorder,
    name: str,
    tensors: Sequence[Any],
    options: tuple[Any, ...],
    members: Members,
    sizes: Sequence[Sequence[int]] | None,
    scale: float,
    into: Sequence[Any] | None,
    after: Sequence[Any],
) -> list[torch.Tensor]:
    values = tuple(record.value_of(recorder, tensor) for tensor in tensors)
    earlier = tuple(record.value_of(recorder, tensor) for tensor in after)
    shapes = [tuple(size) for size in sizes] if sizes is not None else [tuple(tensor._layout.sizes) for tensor in tensors]
    key: list[Any] = [
        _marks.get(name) or _marks.setdefault(name, Mark(name)),
        LIST,
        *values,
        LIST,
        *earlier,
        LIFTED_FLOAT if scale != 1.0 else None,
    ]
    add_constant(key, options)
    add_constant(key, shapes)
    exact = tuple(key)
    edge = recorder.place.edges.get(exact)
    if edge is None:
        outputs = tuple(record._dense(shape, tensor._layout.dtype) for shape, tensor in zip(shapes, tensors, strict=True))
        made = Collective(name, values, earlier, options, outputs, LIFTED_FLOAT if scale != 1.0 else None, len(outputs))
        edge = recorder.exact(exact, lambda: (made, (outputs, _said(name, tensors, options, members))))
    outputs, what = edge.results
    if scale != 1.0:
        recorder.floats.append(scale)
    recorder.agree = agreement.check
    recorder.collectives.append(Note(members.met, what, str(frames.user_line())))
    index = recorder.take(edge).index
    if into is not None:
        with Held():  # all of it is written, or nothing
            for position, target in enumerate(into):
                record.write(recorder, target, ref(index + position))
        torch.autograd.graph.increment_version(into)
        return list(into)
    return [_new(recorder, output, ref(index + position)) for position, output in enumerate(outputs)]


def _new(recorder: Recorder, output: Layout, value: Ref) -> torch.Tensor:
    storage = Storage(recorder, output)
    recorder.define(storage, value)
    return fresh(storage)


def _said(name: str, tensors: Sequence[Any], options: tuple[Any, ...], members: Members) -> str:
    """What the processes compare. The groups that a sub-group's members make up for the others are no part of it."""
    shown = [f"{str(tensor._layout.dtype).removeprefix('torch.')}{list(tensor._layout.sizes)}" for tensor in tensors]
    if len(shown) > 4:
        everything = zlib.crc32(",".join(shown).encode())
        shown = [*shown[:3], f"... ({len(shown)} tensors, checksum of shapes and dtypes {everything:08x})"]
    *rest, groups = options
    where = f" in groups {[list(group) for group in groups]}" if groups is not None and len(members.met) == replica().size else ""
    return f"{' '.join(map(str, (name, *rest)))} of {', '.join(shown)}{where}"


# The collectives


def check_reduction(kind: str) -> None:
    """``ValueError`` for a reduction that there isn't."""
    if kind not in REDUCTIONS:
        raise ValueError(f"unknown reduction {kind!r}: it is one of {', '.join(REDUCTIONS)}")


def _scaled(tensors: Sequence[torch.Tensor], scale: float, into: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """One process's own values: what every collective is for one."""
    with torch.no_grad():
        results = [tensor.clone() if scale == 1.0 else tensor * scale for tensor in tensors]
        return results if into is None else [target.copy_(result) for target, result in zip(into, results, strict=True)]


def all_reduce(
    kind: str, tensors: Sequence[torch.Tensor], members: Members, scale: float = 1.0, into: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """The reduction over all members of each tensor, times ``scale``. Booleans are summed as by ``or``."""
    check_reduction(kind)
    if kind in ("and", "or") and any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        raise TypeError(f"all_reduce: {kind!r} is for integers and booleans")
    if members.size == 1:
        return _scaled(tensors, scale, into) if into is not tensors or scale != 1.0 else list(into)
    return together("all_reduce", tensors, (kind,), members, scale=scale, into=into)


def all_gather(tensors: Sequence[torch.Tensor], dim: int, members: Members, after: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
    """The values of all members, one after the other along ``dim``; gathered once the tensors ``after`` have been computed."""
    if members.size == 1:
        return _scaled(tensors, 1.0, None)
    dims = {_dim(tensor, dim) for tensor in tensors}
    if len(dims) > 1:
        return [all_gather([tensor], dim, members, after)[0] for tensor in tensors]
    sizes = [_times(tensor.shape, dims, members.size, 1) for tensor in tensors]
    return together("all_gather", tensors, tuple(dims), members, sizes, after=after)


def reduce_scatter(kind: str, tensors: Sequence[torch.Tensor], dim: int, members: Members, scale: float = 1.0) -> list[torch.Tensor]:
    """This process's part, along ``dim``, of the reduction over all members, times ``scale``."""
    check_reduction(kind)
    if members.size == 1:
        return _scaled(tensors, scale, None)
    dims = {_dim(tensor, dim) for tensor in tensors}
    if len(dims) > 1:
        return [reduce_scatter(kind, [tensor], dim, members, scale)[0] for tensor in tensors]
    sizes = [_times(tensor.shape, dims, 1, members.size) for tensor in tensors]
    return together("reduce_scatter", tensors, (kind, *dims), members, sizes, scale)


def all_to_all(tensor: torch.Tensor, split: int, concat: int, members: Members) -> torch.Tensor:
    """Part ``i`` along ``split`` goes to member ``i``, which puts what it gets one after the other along ``concat``."""
    if members.size == 1:
        return tensor.clone()
    split, concat = _dim(tensor, split), _dim(tensor, concat)
    sizes = _times(_times(tensor.shape, {split}, 1, members.size), {concat}, members.size, 1)
    return together("all_to_all", [tensor], (split, concat), members, [sizes])[0]


def exchange(parts: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]], members: Members) -> list[torch.Tensor]:
    """Part ``i`` goes to member ``i``, and what comes from member ``i`` is of shape ``shapes[i]``. They may all be of different sizes: two
    members know of their two parts, and of no others; so each two exchange theirs, padded to one size. All go through the pairs in one
    order, so that none waits for another that waits for it.
    """
    if not len(parts) == len(shapes) == members.size:
        raise ValueError(f"all_to_all: {len(parts)} part(s) to send and {len(shapes)} to get, for {members.size} process(es)")
    own, found = members.position, list(parts)
    if parts[own].numel() != math.prod(shapes[own]):
        raise ValueError(
            f"all_to_all: this process's part for itself is of shape {list(parts[own].shape)}, and {list(shapes[own])} is to come"
        )
    for place in sorted(range(members.size), key=lambda place: members.group[place]):
        if place != own:
            found[place] = _swapped(parts[place].reshape(-1), math.prod(shapes[place]), sorted((members.group[own], members.group[place])))
    return [part.reshape(shape) for part, shape in zip(found, shapes, strict=True)]


def _swapped(part: torch.Tensor, count: int, pair: Sequence[int]) -> torch.Tensor:
    """The other's part, of ``count`` elements, for this process's: both ``[N]``."""
    members = Members(only=pair)
    mine, size = members.position, max(len(part), count)
    padded = torch.nn.functional.pad(part, (0, size - len(part)))
    rows = torch.stack([padded, padded])  # the one goes to the other, and one stays
    lengths = (len(part), count) if mine == 0 else (count, len(part))
    return together("exchange", [rows], (lengths,), members)[0][1 - mine][:count]


def collective_permute(tensor: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The value of the process that sends to this one; zeros where none does."""
    size = replica().size
    try:
        found = tuple((int(source), int(target)) for source, target in pairs)
    except (TypeError, ValueError):
        raise TypeError(f"collective_permute: {pairs!r} must be pairs of a source and a target, as in [[0, 1], [1, 0]]") from None
    for source, target in found:
        if not (0 <= source < size and 0 <= target < size):
            raise ValueError(f"collective_permute: pair ({source}, {target}) names a replica that isn't there: there are {size}, from 0 on")
    if len({target for _, target in found}) < len(found) or len({source for source, _ in found}) < len(found):
        raise ValueError(f"collective_permute: in {list(found)} one replica sends, or is sent to, twice")
    if size == 1:
        return tensor.clone() if found else torch.zeros_like(tensor)
    members = Members()
    return together("collective_permute", [tensor], (found,), members)[0]


def broadcast(tensors: Sequence[torch.Tensor], root: int, members: Members) -> None:
    """Gives all members the values of the one with the ordinal ``root``, in place."""
    if root not in members.group:
        raise ValueError(f"broadcast: {root} isn't among the ordinals {list(members.group)} to which it would send")
    if members.size > 1:
        together("broadcast", tensors, (root,), members, into=tensors)


def post(message: Message) -> None:
    """Sends, or receives, when ``deliver`` is called, or before the next collective."""
    _posted.append(message)


def deliver() -> None:
    """Sends and receives what was posted; in the order of the pairs of processes, whatever the order of posting, so that none waits for
    another that waits for it.
    """
    found = sorted(_posted, key=lambda message: (sorted(message[:2]), message.source))
    _posted.clear()
    for source, target, tensor in found:
        if source != target:
            together("send", [tensor], (source,), Members(only=sorted((source, target))), into=[tensor])


def finish() -> None:
    """Does what was recorded and not run yet: here nobody reads what it gives, but others may."""
    deliver()
    for recorder in devices.started():
        if recorder.collectives:
            recorder.cut(Cause.SYNC)


def _dim(tensor: torch.Tensor, dim: int) -> int:
    if not -tensor.ndim <= dim < tensor.ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-tensor.ndim}, {tensor.ndim - 1}], but got {dim})")
    return dim % tensor.ndim


def _times(sizes: Sequence[int], dims: set[int], factor: int, divisor: int) -> tuple[int, ...]:
    (dim,) = dims
    if sizes[dim] % divisor:
        raise ValueError(f"dimension {dim} of {list(sizes)} can't be split into {divisor} equal parts, one a process")
    return tuple(size * factor // divisor if place == dim else size for place, size in enumerate(sizes))
