"""An optimizer's update of many tensors, recorded as one operation.

It doesn't pass PyTorch's dispatcher: nobody but the optimizer sees it, and a list of hundreds of tensors would take longer there than here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from surestep.execute import transfer
from surestep.execute.interrupts import Held
from surestep.tensor import record
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh
from surestep.trace.layout import Layout, layout
from surestep.trace.operands import LIFTED_FLOAT, LIST, Mark, Ref, ref
from surestep.trace.recorder import LOCK, Recorder
from surestep.trace.records import Call
from surestep.trace.storage import Storage

_marks: dict[str, Mark] = {}


class Noted(NamedTuple):
    """Where among the trace's numbers those of an update begin."""

    rule: str
    position: int | None  # None: it was written out in PyTorch's operations, and its numbers can't be told from others
    param: XlaTensor
    uniform: Storage | None  # the counts of steps, where the program takes them to be equal


overflows: list[XlaTensor] = []  # while a step is conditional: numbers, unread, of which one that isn't 0 keeps all as it is
watched: list[Noted] | None = None  # who wants to know of updates puts a list here


def note_written_out(name: str, params: Sequence[torch.Tensor]) -> None:
    """An optimizer's update is not one operation, but PyTorch's own."""
    if watched is not None:
        watched.extend(Noted(name, None, param, None) for param in params[:1] if type(param) is XlaTensor)


def update(
    name: str,
    flags: list[str],
    numbers: tuple[float, ...],
    steps: Sequence[XlaTensor],
    params: Sequence[XlaTensor],
    grads: Sequence[XlaTensor],
    states: Sequence[Sequence[XlaTensor]],
) -> None:
    """Records the update of ``lower.update``'s rule ``name``: writes ``steps``, ``params`` and ``states``, all on one device.

    Where a ``GradScaler`` has found an overflow (``overflows``), the program writes what was there. The numbers are inputs of the program
    from the start, as what they are for is to be changed by a schedule.
    """
    counts = steps[0]._storage if len(steps) == 1 and steps[0].ndim else None
    uniform = counts is not None and bool(counts.uniform)
    if uniform:
        flags = [*flags, "uniform"]
    with LOCK:
        recorder: Recorder = params[0]._storage.trace
        if recorder.count >= recorder.limit:
            recorder.check_limit()
        lists = (steps, params, grads, overflows, *states)
        try:
            key: list[Any] = [_marks.get(name) or _marks.setdefault(name, Mark(name)), *flags]
            for tensors in lists:
                key.append(LIST)
                for tensor in tensors:
                    storage = tensor._storage
                    if tensor._layout is storage.layout and storage.serial == recorder.serial:
                        key.append(storage.ref)
                    else:
                        key.append(record.value_of(recorder, tensor))
            exact = tuple(key)
            edge = recorder.place.edges.get(exact)
            if edge is None:
                edge = recorder.exact(exact, lambda: (_call(recorder, name, flags, len(numbers), lists), None))
            if watched is not None:
                watched.append(Noted(name, len(recorder.floats), params[0], counts if uniform else None))
            recorder.floats.extend(numbers)
            index = recorder.take(edge).index
        except BaseException:
            recorder.repair()
            raise
        with Held():  # all of it is written, or nothing
            for tensors in (steps, params, *states):
                for tensor in tensors:
                    record.write(recorder, tensor, ref(index))
                    index += 1
            if counts is not None:
                counts.uniform = uniform
        torch.autograd.graph.increment_version(params)


def _call(recorder: Recorder, name: str, flags: list[str], numbers: int, lists: tuple) -> Call:
    from surestep.lower.body import body  # JAX is imported when it is first needed

    figures: dict[Ref, tuple] = {}

    def noted(tensor: XlaTensor) -> Ref:
        value = record.value_of(recorder, tensor)
        figures[value] = (tensor._layout.sizes, tensor._layout.dtype)
        return value

    arguments = (flags, [LIFTED_FLOAT] * numbers, *([noted(tensor) for tensor in tensors] for tensors in lists))
    steps, params, _grads, _overflows, *states = lists
    outputs = tuple(record._dense(tensor._layout.sizes, tensor._layout.dtype) for tensors in (steps, params, *states) for tensor in tensors)
    operation = f"update::{name}"
    traced = body(operation, arguments, {}, figures, outputs, single=False, computed=None)
    return Call(operation, arguments, {}, outputs, False, False, None, traced, len(outputs))


# The optimizer whose step() is running: what it makes is made at once.
stepping: list[torch.optim.Optimizer] = []
_recorded_zeros = record.handler(Operation(torch.ops.aten.zeros_like.default))


def zeros_like(args: tuple, kwargs: dict) -> Any:
    """``torch.zeros_like``. An optimizer's first step makes its state by it, the later ones find the state there: so that all of them are
    one program, zeros made there are not recorded, but sent.
    """
    like = args[0]
    if stepping and type(like) is XlaTensor and like._layout.dense and not like._layout.offset and kwargs.get("dtype") is None:
        return fresh(_zeros(like, like._layout))
    return _recorded_zeros(args, kwargs)


def _zeros(like: XlaTensor, wanted: Layout) -> Storage:
    recorder = like._storage.trace
    made = Storage(recorder, wanted, transfer.to_device(torch.zeros(wanted.sizes, dtype=wanted.dtype), recorder.device))
    made.sharding = like._storage.sharding if like._storage.layout.sizes == wanted.sizes else None
    return made


def zeros(like: XlaTensor) -> XlaTensor:
    """A new tensor of zeros that lies as another does, on the device already."""
    view = like._layout
    dense = view if view.dense and not view.offset else record._dense(view.sizes, view.dtype)
    return fresh(_zeros(like, dense))


def sent(number: torch.Tensor, recorder: Recorder) -> torch.Tensor:
    """A number of the host (a 0-dim CPU tensor) on the device."""
    return fresh(Storage(recorder, layout((), (), 0, number.dtype), transfer.to_device(number, recorder.device)))


def packed(numbers: Sequence[torch.Tensor], recorder: Recorder) -> list[torch.Tensor]:
    """Numbers of the host (0-dim CPU tensors of one dtype) as elements of one vector on the device."""
    values = torch.stack(list(numbers))
    whole = fresh(Storage(recorder, layout((len(numbers),), (1,), 0, values.dtype), transfer.to_device(values, recorder.device)))
    whole._storage.uniform = bool((values == values[0]).all())
    return [alias(whole._storage, layout((), (), position, values.dtype), whole) for position in range(len(numbers))]


def entangled(params: Sequence[XlaTensor], grads: Sequence[XlaTensor]) -> bool:
    """Whether an update may read what that of an earlier parameter has written: parameters tied by ``.data =``, a gradient over a
    parameter's storage. Then they are done one after the other.
    """
    storages = {id(param._storage) for param in params}
    if any(id(grad._storage) in storages for grad in grads):
        return True
    if len(storages) == len(params):
        return False
    lying = sorted(((id(param._storage), param._layout) for param in params), key=lambda lies: (lies[0], lies[1].offset))
    return any(one == other and lower.meets(upper) for (one, lower), (other, upper) in itertools.pairwise(lying))


def look_at(counts: XlaTensor) -> None:
    """Whether all counts are equal, read once where that isn't known: a checkpoint has brought them, or somebody has written one."""
    storage = counts._storage
    if storage.uniform is None and storage.array is not None and storage.trace.sealed is None:
        values = counts.cpu()
        storage.uniform = bool((values == values[0]).all())


def as_vector(elements: Sequence[XlaTensor]) -> XlaTensor | None:
    """The vector whose elements these are, all of them and in order; else None."""
    storage = elements[0]._storage
    whole = storage.layout
    if whole.numel != len(elements) or len(whole.sizes) != 1 or whole.strides[0] != 1:
        return None
    for position, element in enumerate(elements):
        if element._storage is not storage or element._layout.offset != position or element._layout.dtype is not whole.dtype:
            return None
    return fresh(storage)
