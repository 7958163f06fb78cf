"""Recording a function as a trace of its own: on stand-ins for what it is given, with what it reads from outside found on the way.

PyTorch's own autograd gives its derivative, recorded behind it in the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from surestep.control.captures import Captures, outer
from surestep.execute.interrupts import Held
from surestep.observe import frames
from surestep.observe.events import Cause
from surestep.tensor import generator as generators
from surestep.tensor import record
from surestep.tensor.generator import Stream
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh
from surestep.trace.layout import Layout
from surestep.trace.nested import Nested, positions
from surestep.trace.operands import HostScalar, Ref
from surestep.trace.recorder import LOCK, Recorder
from surestep.trace.records import Call, Leaf, Seed
from surestep.trace.storage import Storage
from surestep.trace.trie import Place


class Input(NamedTuple):
    """What a function is given: a tensor of this layout, and whether gradients flow to it."""

    layout: Layout
    requires_grad: bool


class Noted:
    """A storage from outside that a trace reads, as it was."""

    __slots__ = ("array", "ref", "serial", "storage")

    def __init__(self, storage: Storage):
        self.storage, self.array, self.serial, self.ref = storage, storage.array, storage.serial, storage.ref

    def restore(self) -> Storage:
        """Back to what it was; a storage with that value, which is another where the function has overwritten its own."""
        storage = self.storage
        if storage.array is None and self.array is not None:
            return Storage(storage.trace, storage.layout, self.array)
        storage.array, storage.serial, storage.ref = self.array, self.serial, self.ref
        return storage


class Drawn(NamedTuple):
    """Random numbers that the function draws from a stream: from which seed and offset on, and how often."""

    stream: Stream
    seed: int
    offset: int
    draws: int


class Outside(NamedTuple):
    """What a recorded function needs from outside: what it reads, then what its derivative reads besides; and where gradients go."""

    captured: list[Storage]
    tensors: dict[int, torch.Tensor]  # over what is captured, by position, where one is known: it knows of writes
    local: set[int]  # what is captured, and made inside: sent from the host
    sinks: list[torch.Tensor]


class Recorded:
    """A function's trace. It holds no tensors: a graph that outlives its backward pass holds it."""

    def __init__(self, name: str, recorder: Recorder):
        self.name = name
        self.recorder = recorder
        self.nested: Nested
        self.place: Place  # where its trace ends: no other trace ends there
        self.outputs: list[Layout] = []
        self.differentiable: list[int] = []  # outputs with a cotangent
        self.wanted: list[int] = []  # inputs with a gradient
        self.gradients: list[Layout] = []
        self.written: list[int] = []  # inputs that were overwritten
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.of_host = False  # numbers of CPU tensors are among them
        self.drawn: list[Drawn] = []


class _Tracing:
    """While a function is recorded: what its trace may do to the storages from outside, and the tensors that are made in it."""

    def __init__(self, name: str, recorder: Recorder):
        self.name, self.recorder = name, recorder
        self.serial = 0
        self.captured: list[Storage] = []  # once it is over

    # What the recorder asks

    def owns(self, storage: Storage) -> bool:
        """Whether it is from outside."""
        return storage.born != self.serial

    def note(self, storage: Storage) -> Noted:
        """Its value becomes a leaf."""
        return Noted(storage)

    def check_write(self, storage: Storage) -> None:
        """``RuntimeError`` where it is from outside."""
        if self.owns(storage):
            raise RuntimeError(
                f"{self.name}: the function writes in place to a tensor of shape {list(storage.layout.sizes)} from outside of it "
                f"({frames.user_line()}). It is recorded once, for all rounds: give the tensor to it (in the carry), and return what it "
                f"becomes"
            )

    def refuse(self, cause: Cause) -> None:
        """There is no boundary inside."""
        raise RuntimeError(
            f"{self.name}: {cause.value}, inside of the function ({frames.user_line()}). It is recorded once, for all rounds, and its "
            f"tensors have no values then. Compute with tensors (torch.where for a choice, index_select for an index), and read after it"
        )

    # Stand-ins

    def leaf(self, layout: Layout) -> XlaTensor:
        """A stand-in: a leaf of the trace, whose value comes later."""
        recorder = self.recorder
        recorder.leaves.append(None)
        recorder.leaf_layouts.append(layout)
        value = recorder.simple(layout, lambda: Leaf(layout))
        storage = Storage(recorder, layout)
        recorder.define(storage, value)
        recorder.owners.append(recorder.written[-1])
        return fresh(storage)


@contextmanager
def _tracing(name: str, recorder: Recorder, code: Any) -> Generator[_Tracing]:
    """A trace within the recorder's. When it ends, all is as it was; tensors made in it that are still there say what they are."""
    tracing = _Tracing(name, recorder)
    with LOCK:
        before = recorder.nest((name, code, frames.user_line()), tracing, tracing.refuse)
        tracing.serial = recorder.serial
        try:
            yield tracing
        finally:
            with Held():
                inside = [owner() for owner in recorder.written]
                notes = [noted for noted in recorder.leaves if noted is not None]
                recorder.resume(before)
                for storage in inside:
                    if storage is not None and storage.serial == tracing.serial:
                        storage.serial = 0
                        storage.lost = (
                            f"this tensor was made inside of {name}'s function, which is recorded once, for all rounds: it has a value "
                            f"there only. Return it from the function"
                        )
                tracing.captured = [noted.restore() for noted in notes]


class _Given(torch.autograd.Function):
    """A stand-in as the function gets it: not a leaf of autograd, so that it may be overwritten."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> XlaTensor:
        return alias(tensor._storage, tensor._layout, None)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[bad-override]
        return grad


def recorded(
    name: str,
    recorder: Recorder,
    function: Callable[[list[torch.Tensor]], Sequence[Any]],
    inputs: Sequence[Input],
    differentiate: bool,
    users: Any,
) -> tuple[Recorded, Outside]:
    """Records ``function(tensors)``, which returns tensors, and with ``differentiate`` its derivative, if there is one.

    ``users`` is the user's own function that it calls. The generators go on as after one run of it.
    """
    found = Recorded(name, recorder)
    states = generators.states(recorder.device)
    with _tracing(name, recorder, getattr(users, "__code__", type(users))) as tracing:
        leaves: list[Any] = [tracing.leaf(layout).requires_grad_(requires) for layout, requires in inputs]
        before = [tensor._storage.ref for tensor in leaves]
        captures = Captures(name, tracing.serial, leaves) if differentiate else None
        given = [_Given.apply(leaf) if leaf.requires_grad else leaf for leaf in leaves]
        with captures or outer():
            results = function(list(given))
        if captures is not None:
            results = [captures.substituted(result) for result in results]
        outputs = [_value(name, recorder, result) for result in results]
        found.written = [place for place, (leaf, value) in enumerate(zip(leaves, before, strict=True)) if leaf._storage.ref is not value]
        found.outputs = [record._dense(result._layout.sizes, result._layout.dtype) for result in results]
        split = recorder.place
        read = len(recorder.leaves) - len(inputs)
        gradients: list[Ref | None] = []
        sinks: list[torch.Tensor] = []
        if captures is not None:
            gradients, sinks = _derivative(found, tracing, captures, leaves, results)
        if recorder.collectives:
            raise NotImplementedError(f"{name}: collectives inside of the function can't be recorded yet. Do them before or after it")
        _numbers(found, states)
        found.place = recorder.place
        records = found.place.records()
        found.of_host = any(isinstance(each, Call) and _of_host((each.arguments, list(each.keywords.values()))) for each in records)
        found.nested = Nested(
            records,
            positions(records),
            len(split.records()),
            len(inputs),
            read,
            tuple(value.index for value in outputs),
            tuple(None if value is None else value.index for value in gradients),
            tuple(drawn.draws for drawn in found.drawn),
        )
        found.place.forget_twins()
    captured, seen = tracing.captured, {} if captures is None else captures.seen
    local = {place for place, storage in enumerate(captured) if storage.born == tracing.serial}
    tensors = {place: seen[id(storage)] for place, storage in enumerate(captured) if id(storage) in seen}
    return found, Outside(captured, tensors, local, sinks)


def _value(name: str, recorder: Recorder, result: Any) -> Ref:
    if not isinstance(result, XlaTensor) or result._storage.trace is not recorder:
        what = f"a tensor on {result.device}" if isinstance(result, torch.Tensor) else f"a {type(result).__name__}"
        raise TypeError(f"{name}: the function returns {what}; it must return tensors on xla:{recorder.device}")
    return record.value_of(recorder, result)


def _derivative(
    found: Recorded, tracing: _Tracing, captures: Captures, leaves: list[XlaTensor], results: Sequence[Any]
) -> tuple[list[Ref | None], list[torch.Tensor]]:
    """Records the gradients of the inputs that have one, and of tensors from outside; gives both."""
    if any(stand.grad is not None for stand in (*leaves, *(stand for _, stand in captures.stands.values()))):
        raise RuntimeError(
            f"{found.name}: the function calls backward(), whose gradients would be left inside of it. Use torch.autograd.grad, and return "
            f"what it gives; or torch_xla.experimental.gradient_accumulation"
        )
    found.differentiable = [place for place, result in enumerate(results) if result.requires_grad]
    found.wanted = [place for place, leaf in enumerate(leaves) if leaf.requires_grad]
    if not found.differentiable:
        return [], []
    direct = captures.direct(results)
    sinks = [*captures.stands.values(), *((tensor, tensor) for tensor in direct)]
    if not found.wanted and not sinks:
        found.differentiable = []
        return [], []
    sources = [*(leaves[place] for place in found.wanted), *(stand for _, stand in sinks)]
    cotangents = [tracing.leaf(found.outputs[place]) for place in found.differentiable]
    # the function around, which may be being recorded too, must not look in
    with torch.autocast("xla", enabled=False), _without_hooks(direct), torch._C.DisableTorchFunction():
        grads = torch.autograd.grad([results[place] for place in found.differentiable], sources, cotangents, allow_unused=True)
    of_inputs, of_sinks = grads[: len(found.wanted)], grads[len(found.wanted) :]
    used = [(tensor, grad) for (tensor, _), grad in zip(sinks, of_sinks, strict=True) if grad is not None]
    found.gradients = [
        *(record._dense(leaves[place]._layout.sizes, leaves[place]._layout.dtype) for place in found.wanted),
        *(record._dense(grad._layout.sizes, grad._layout.dtype) for _, grad in used),  # type: ignore[missing-attribute]
    ]
    all_grads: Iterable[Any] = (*of_inputs, *(grad for _, grad in used))
    values = [None if grad is None else _value(found.name, found.recorder, grad) for grad in all_grads]
    return values, [tensor for tensor, _ in used]


@contextmanager
def _without_hooks(tensors: Sequence[torch.Tensor]) -> Generator[None]:
    """Hooks on a tensor from outside are for its whole gradient, not for a round's part of it."""
    hooks = [tensor._backward_hooks for tensor in tensors if tensor._backward_hooks]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, items in zip(hooks, kept, strict=True):
            each.update(items)


def _numbers(found: Recorded, before: dict[int, tuple[int, int]]) -> None:
    """The numbers of the trace, without its seeds; and how far the generators went."""
    recorder = found.recorder
    found.floats, found.ints = list(recorder.floats), list(recorder.ints)
    for (number, seed), (_, first) in recorder.seeds.items():
        generator = generators.drawing(number)
        if generator is None or before.get(number) != (seed, first) or generator.initial_seed() != seed or generator.get_offset() < first:
            raise RuntimeError(
                f"{found.name}: the function draws from a generator of the CPU, or sets a seed: each round would draw the same. Let it "
                f"draw from the device's own generator, or from a surestep.Generator, and seed outside"
            )
        found.drawn.append(Drawn(generator._stream, seed, first, generator.get_offset() - first))
    places = [place for place, each in _with_ints(recorder.place.records()) if isinstance(each, Seed)]
    for place in reversed(places):
        del found.ints[place : place + 2]


def _with_ints(records: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    return ((at.int, each) for each, at in zip(records, positions(records), strict=False))


def _of_host(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_of_host(item) for item in value)
    return isinstance(value, HostScalar)
