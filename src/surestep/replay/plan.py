"""A plan: how a proven call is run again without its Python. Where each leaf of its program comes from, and where each output goes."""

from __future__ import annotations

import sys
import time
from itertools import chain, repeat
from operator import attrgetter, is_, is_not
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from surestep.execute import transfer
from surestep.execute.interrupts import Held
from surestep.execute.program import Program
from surestep.loop.updates import RULES, flags_of, numbers_of
from surestep.observe import events
from surestep.replay.capture import Taken, graph_nodes
from surestep.replay.guards import Guards
from surestep.replay.signature import Arguments
from surestep.replay.values import NotReplayable
from surestep.tensor import generator
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh
from surestep.trace.layout import Layout
from surestep.trace.recorder import Recorder
from surestep.trace.storage import Storage

_array = attrgetter("array")
_grad = attrgetter("grad")


class Entry(NamedTuple):
    """The gradients before a call, where there were any."""

    params: list[torch.Tensor]
    grads: list[torch.Tensor | None]


def entry(guards: Guards) -> Entry:
    """The gradients of all that the step can see, before it runs."""
    params = [tensor for tensor, _ in guards.tensors.values() if isinstance(tensor, XlaTensor) and tensor.requires_grad and tensor.is_leaf]
    return Entry(params, [param.grad for param in params])


class Result(NamedTuple):
    """One tensor among what the call returned: an argument, a tensor from outside, or one that the call made."""

    argument: int | None
    kept: torch.Tensor | None
    output: int | None  # position among the program's outputs
    layout: Layout | None


class Numbers(NamedTuple):
    """Where an optimizer's numbers stand among the program's."""

    position: int
    count: int
    rule: Any
    flags: list[str]
    group: dict[str, Any]


class Plan:
    """One proven call."""

    def __init__(self, recorder: Recorder, guards: Guards, arguments: Arguments, before: Entry, taken: Taken, result: Any):
        self.recorder = recorder
        self.guards = guards
        self.checks = guards.compiled()
        self.objects = arguments.objects
        self.place = taken.place
        self.count_arguments = len(arguments.tensors)
        self.params = before.params
        self.missing = [grad is None for grad in before.grads]
        self.modes = modes()
        self.runs = 0
        self.same = False  # as the call before
        self.used_up: list[int] = []  # gradients whose memory the program takes
        self.program: Program | None = None
        self._bind_leaves(arguments, before, taken)
        self._bind_numbers(taken)
        self._bind_results(arguments, taken, result)
        self._bind_outputs(arguments, before, taken)
        self.original = self.bindings()

    # Binding: done once, after the call was recorded and before its program is run

    def _bind_leaves(self, arguments: Arguments, before: Entry, taken: Taken) -> None:
        of_argument = {id(tensor._storage): position for position, tensor in enumerate(arguments.tensors)}
        of_grad = {id(grad._storage): position for position, grad in enumerate(before.grads) if type(grad) is XlaTensor}
        kept = {id(tensor._storage): tensor for tensor, _ in self.guards.tensors.values() if type(tensor) is XlaTensor}
        sent = {id(array): source for source, array in taken.uploads}
        if any(tensor.requires_grad for tensor in arguments.tensors):
            raise NotReplayable("an argument wants a gradient")
        if len(set(map(id, taken.leaves))) < len(taken.leaves) or len(of_grad) < sum(grad is not None for grad in before.grads):
            raise NotReplayable("two of the tensors share their memory")
        self.kept: list[Storage] = []
        self.storages: list[Storage | None] = []
        self.from_argument: list[tuple[int, int]] = []
        self.from_host: list[tuple[int, int]] = []
        self.from_grad: list[tuple[int, int]] = []
        self.grad_layouts: list[tuple[int, Layout, Layout]] = []
        for position, (array, storage) in enumerate(zip(taken.leaves, taken.owners, strict=True)):
            known = None if storage is None else id(storage)
            self.storages.append(None)
            if known in of_argument:
                self.from_argument.append((position, of_argument[known]))
            elif id(array) in sent:
                self.from_host.append((position, _host_argument(arguments, sent[id(array)])))
            elif known in of_grad:
                number = of_grad[known]
                grad = before.grads[number]
                assert type(grad) is XlaTensor
                self.from_grad.append((position, number))
                self.grad_layouts.append((number, grad._layout, grad._storage.layout))
            elif known in kept:
                self.storages[-1] = storage
                self.kept.append(storage)  # type: ignore[bad-argument-type]
            else:
                raise NotReplayable("the step reads a tensor of which it can't be told where it comes from")
        self.distinct = len({id(storage) for storage in (*self.kept, *(t._storage for t in arguments.tensors))})
        self.total = len(self.kept) + len(arguments.tensors)

    def _bind_numbers(self, taken: Taken) -> None:
        self.floats = np.array(taken.floats, np.float64)
        self.ints = np.array(taken.ints, np.int64)
        self.draws = taken.draws
        self.numbers: list[Numbers] = []
        self.uniform = [noted.uniform for noted in taken.updates if noted.uniform is not None]
        for noted in taken.updates:
            rule = RULES[noted.rule]
            group = self._group_of(noted.param)
            self.numbers.append(Numbers(noted.position, len(rule.numbers), rule, flags_of(rule, group), group))
        self.groups = [numbers.group for numbers in self.numbers]
        self.group_values = [group.values() for group in self.groups]  # views
        self.group_lengths = list(map(len, self.groups))
        self.seen = [value for values in self.group_values for value in values]
        self.float_array: Any = None
        self.int_array: Any = None
        self.expected: Any = None  # what a replay would have given the program, while a recorded call is compared

    def _group_of(self, param: torch.Tensor) -> dict[str, Any]:
        for optimizer, _ in self.guards.optimizers.values():
            for group in optimizer.param_groups:
                if any(param is each for each in group["params"]):
                    return group
        raise NotReplayable("an optimizer steps that the code doesn't show")

    def _bind_results(self, arguments: Arguments, taken: Taken, result: Any) -> None:
        leaves, self.spec = tree_flatten(result)
        self.single = self.spec.is_leaf()
        self.keeps = list(self.guards.kept.values())
        leaves = [*leaves, *(_held(container, key) for container, key in self.keeps)]
        places = {id(storage): index for index, storage in taken.outputs.items()}
        known = {id(tensor): tensor for tensor, _ in self.guards.tensors.values()}
        of_argument = {id(tensor): position for position, tensor in enumerate(arguments.tensors)}
        consumed = (
            graph_nodes(taken.roots) if any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves) else set()
        )
        self.results: list[Any] = []
        self.output_layouts: dict[int, Layout] = {}
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                self.results.append(_constant(leaf))
            elif id(leaf) in of_argument:
                self.results.append(Result(of_argument[id(leaf)], None, None, None))
            elif id(leaf) in known:
                self.results.append(Result(None, known[id(leaf)], None, None))
            elif type(leaf) is not XlaTensor or id(leaf._storage) not in places:
                raise NotReplayable(
                    "the step returns a tensor that its program doesn't compute: a CPU tensor, or a view of one from outside"
                )
            elif leaf.grad_fn is not None and leaf.grad_fn not in consumed:
                raise NotReplayable(
                    "the step returns a tensor through which gradients are still to flow. Put backward() into the step too, return it "
                    "detached, or call it under torch.no_grad()"
                )
            else:
                self.results.append(Result(None, None, places[id(leaf._storage)], leaf._layout))
                self.output_layouts[places[id(leaf._storage)]] = leaf._storage.layout

    def _bind_outputs(self, arguments: Arguments, before: Entry, taken: Taken) -> None:
        of_argument = {id(tensor._storage): position for position, tensor in enumerate(arguments.tensors)}
        kept = {id(tensor._storage): tensor for tensor, _ in self.guards.tensors.values() if type(tensor) is XlaTensor}
        grads_before = {id(grad._storage): number for number, grad in enumerate(before.grads) if type(grad) is XlaTensor}
        returned = {leaf.output for leaf in self.results if isinstance(leaf, Result) and leaf.output is not None}
        self.new_grads: list[tuple[int, int, Layout]] = []
        self.no_grads: list[int] = []
        made: dict[int, int] = {}
        for number, (param, old) in enumerate(zip(before.params, before.grads, strict=True)):
            now = param.grad
            if now is old:
                continue
            if now is None:
                self.no_grads.append(number)
            elif type(now) is XlaTensor and now._layout is now._storage.layout and id(now._storage) not in made and now.grad_fn is None:
                made[id(now._storage)] = number
            else:
                raise NotReplayable("a gradient is a view of other memory, or has a graph of its own")
        self.to_kept: list[tuple[int, Storage]] = []
        self.to_argument: list[tuple[int, int]] = []
        self.to_grad: list[tuple[int, int]] = []
        self.written: list[torch.Tensor] = []
        for index, storage in taken.outputs.items():
            known = id(storage)
            if known in of_argument:
                self.to_argument.append((index, of_argument[known]))
            elif known in made:
                self.new_grads.append((index, made[known], storage.layout))
            elif known in grads_before and before.params[grads_before[known]].grad is before.grads[grads_before[known]]:
                self.to_grad.append((index, grads_before[known]))
            elif known in kept:
                self.to_kept.append((index, storage))
                self.written.append(kept[known])
            elif index not in returned:
                raise NotReplayable("a tensor that the step makes is kept somewhere. Return it, or write it in place")
        if len(self.new_grads) < len(made):
            raise NotReplayable("a gradient is not computed by the step's program")
        self.reused: list[Storage | None] = [None] * len(self.new_grads)

    def ready(self, program: Program) -> None:
        """The program is known: where each output stands among its results."""
        place = {index: position for position, index in enumerate(program.outputs)}
        self.program = program
        self.output_layouts = {place[index]: layout for index, layout in self.output_layouts.items()}
        self.to_kept = [(place[index], storage) for index, storage in self.to_kept]
        self.to_argument = [(place[index], number) for index, number in self.to_argument]
        self.to_grad = [(place[index], number) for index, number in self.to_grad]
        self.new_grads = [(place[index], number, layout) for index, number, layout in self.new_grads]
        self.results = [
            leaf._replace(output=place[leaf.output]) if isinstance(leaf, Result) and leaf.output is not None else leaf
            for leaf in self.results
        ]
        written = {number for _, number in self.to_argument}
        if any(position in program.donated and number not in written for position, number in self.from_argument):
            raise NotReplayable("an argument's memory was given away")
        kept = {number for _, number in self.to_grad}
        self.used_up = [number for position, number in self.from_grad if position in program.donated and number not in kept]

    def differs(self, arguments: Arguments, before: Entry, taken: Taken, result: Any) -> str | None:
        """Whether a recorded call did something else than a replay would have done, and what."""
        again = Plan(self.recorder, self.guards, arguments, before, taken, result)  # raises where it isn't to be replayed at all
        if taken.place is not self.place:
            return "it recorded other operations"
        if [numbers[:2] for numbers in again.numbers] != [numbers[:2] for numbers in self.numbers]:
            return "its optimizers stepped in another order"
        expected = self.expected
        if expected is None:
            return "its tensors lie otherwise in memory"
        leaves, floats, ints = expected
        hosts = {position for position, _ in self.from_host}
        if not all(a is b for position, (a, b) in enumerate(zip(leaves, taken.leaves, strict=True)) if position not in hosts):
            return "it read other tensors"
        if np.asarray(floats).tobytes() != again.floats.tobytes() or np.asarray(ints).tobytes() != again.ints.tobytes():
            return "it computed with other numbers"
        if [draw[1:] for draw in again.draws] != [draw[1:] for draw in self.draws]:
            return "it drew other random numbers"
        if again.original != self.original:
            return "it wrote or returned other tensors"
        return None

    def bindings(self) -> tuple:
        """Where all goes, for comparison, before the program is known."""
        return (
            *(self.from_argument, self.from_host, self.from_grad, self.new_grads, self.no_grads, self.to_argument, self.to_grad),
            [(index, id(storage)) for index, storage in self.to_kept],
            [
                (leaf.argument, id(leaf.kept), leaf.output, id(leaf.layout)) if isinstance(leaf, Result) else repr(leaf)
                for leaf in self.results
            ],
            self.spec,
        )

    # Replay

    def changed(self) -> str | None:
        """What is not as it was; None where nothing changed."""
        if modes() != self.modes:
            return "a mode of PyTorch's changed (gradients, autocast, default dtype or device)"
        for holds, what in self.checks:
            if not holds():
                return what()
        if not self._same_groups():
            for numbers in self.numbers:
                if flags_of(numbers.rule, numbers.group) != numbers.flags:
                    return "an option of the optimizer changed"
                if any(type(number) not in (float, int) for number in numbers_of(numbers.rule, numbers.group)):
                    return "a number of the optimizer is a tensor now"
        if not all(counts.uniform for counts in self.uniform):
            return "an optimizer's counts of steps were written"
        if [grad is None for grad in map(_grad, self.params)] != self.missing:
            return "there are other gradients than there were"
        return None

    def inputs(self, arguments: Arguments) -> tuple[list[Any], Any, Any] | None:
        """The program's leaves and numbers for these arguments; None where the memory lies otherwise than it did."""
        tensors = arguments.tensors
        recorder = self.recorder
        if any(tensor._storage.trace is not recorder for tensor in tensors):
            return None
        if len({*map(id, self.kept), *(id(tensor._storage) for tensor in tensors)}) != self.distinct:
            return None
        storages: list[Any] = list(self.storages)
        for position, number in self.from_argument:
            storages[position] = tensors[number]._storage
        if self.from_grad:
            grads = list(map(_grad, self.params))
            for number, layout, whole in self.grad_layouts:
                if grads[number]._layout is not layout or grads[number]._storage.layout is not whole:
                    return None
            for position, number in self.from_grad:
                storages[position] = grads[number]._storage
            if any(_is_shared(grads, number) for number in self.used_up):
                return None
        for position, _ in self.from_host:
            storages[position] = _NOTHING
        if any(map(attrgetter("exported"), storages)):
            return None
        leaves = list(map(_array, storages))
        for position, number in self.from_host:
            leaves[position] = transfer.to_device(arguments.host[number], recorder.device)
        if not all(map(is_not, leaves, repeat(None))):
            return None
        return leaves, self._floats(), self._ints()

    def _same_groups(self) -> bool:
        """Whether the optimizers' groups hold the very objects that the numbers were taken from."""
        return all(map(is_, chain.from_iterable(self.group_values), self.seen)) and list(map(len, self.groups)) == self.group_lengths

    def _floats(self) -> Any:
        """The program's floats, on the device; sent anew only where an optimizer's numbers changed."""
        if self.float_array is None or not self._same_groups():
            for numbers in self.numbers:
                self.floats[numbers.position : numbers.position + numbers.count] = numbers_of(numbers.rule, numbers.group)
            self.seen = [value for values in self.group_values for value in values]
            self.float_array = transfer.numbers_to_device(self.floats, self.recorder.device)
        return self.float_array

    def _ints(self) -> Any:
        if self.draws:
            ints = self.ints.copy()
            for draw in self.draws:
                stream = generator.stream(draw.stream)
                assert stream is not None
                ints[draw.position] = stream.seed if stream.seed < 1 << 63 else stream.seed - (1 << 64)
                ints[draw.position + 1] = stream.offset
            return ints
        if self.int_array is None:
            self.int_array = transfer.numbers_to_device(self.ints, self.recorder.device)
        return self.int_array

    def run(self, arguments: Arguments, inputs: tuple[list[Any], Any, Any]) -> Any:
        """Calls the program; what it wrote is written, and what the call returned is made."""
        program = self.program
        assert program is not None
        tensors = arguments.tensors
        start = time.perf_counter()
        with Held():
            try:
                arrays = program(*inputs)
            except BaseException as error:
                self._lost(inputs[0], tensors, error)
                raise
            for position, storage in self.to_kept:
                storage.array = arrays[position]
            for position, number in self.to_argument:
                tensors[number]._storage.array = arrays[position]
            for position, number in self.to_grad:
                self.params[number].grad._storage.array = arrays[position]  # type: ignore[missing-attribute]
            self._set_grads(arrays)
            for draw in self.draws:
                stream = generator.stream(draw.stream)
                assert stream is not None
                stream.offset += draw.count
        if self.written:
            torch.autograd.graph.increment_version(self.written)
        if self.to_argument:
            torch.autograd.graph.increment_version([tensors[number] for _, number in self.to_argument])
        self.runs += 1
        events.emit("replay", None, program=program.name, seconds=time.perf_counter() - start)
        made = self._made(arrays, tensors)
        for container, key in reversed(self.keeps):
            container[key] = made.pop()
        return made[0] if self.single else tree_unflatten(made, self.spec)

    def _set_grads(self, arrays: Any) -> None:
        """New gradients. Where nobody else holds the one before, its object goes on with the new values, which costs less."""
        recorder, params = self.recorder, self.params
        for slot, (position, number, layout) in enumerate(self.new_grads):
            grad = params[number].grad
            storage = self.reused[slot]
            if storage is not None and grad is not None and sys.getrefcount(grad) <= _ALONE and sys.getrefcount(storage) <= _ALONE + 2:
                if grad._storage is storage and grad._layout is layout and storage.layout is layout and grad.grad_fn is None:
                    storage.array = arrays[position]
                    storage.serial = 0
                    continue
            self.reused[slot] = storage = Storage(recorder, layout, arrays[position])
            params[number].grad = fresh(storage)
        for number in self.no_grads:
            params[number].grad = None

    def _made(self, arrays: Any, tensors: list[XlaTensor]) -> list[Any]:
        made: dict[int, XlaTensor] = {}
        found = []
        for leaf in self.results:
            if not isinstance(leaf, Result):
                found.append(leaf)
            elif leaf.argument is not None:
                found.append(tensors[leaf.argument])
            elif leaf.kept is not None:
                found.append(leaf.kept)
            else:
                found.append(self._output(leaf, arrays, made))
        return found

    def _output(self, leaf: Result, arrays: Any, made: dict[int, XlaTensor]) -> XlaTensor:
        assert leaf.output is not None and leaf.layout is not None
        whole = made.get(leaf.output)
        if whole is None:
            whole = made[leaf.output] = fresh(Storage(self.recorder, self.output_layouts[leaf.output], arrays[leaf.output]))
            if leaf.layout is whole._layout:
                return whole
        return alias(whole._storage, leaf.layout, whole)

    def _lost(self, leaves: list[Any], tensors: list[XlaTensor], error: BaseException) -> None:
        """The program failed as it was called: what it had been given is gone."""
        if not any(leaf.is_deleted() for leaf in leaves):
            return
        assert self.program is not None
        lost = [storage for _, storage in self.to_kept] + [tensors[number]._storage for _, number in self.to_argument]
        for storage in lost:
            storage.array, storage.serial = None, 0
            storage.lost = f"this tensor's value is lost: its memory was given to {self.program.name}, which failed: {error}"


def _is_shared(grads: list[Any], number: int) -> bool:
    """Whether somebody else than its parameter holds a gradient, or a tensor over the same memory."""
    return sys.getrefcount(grads[number]) > _ALONE or sys.getrefcount(grads[number]._storage) > _ALONE


class _Nothing:
    array = True  # stands for an array that is sent in a moment
    exported = False


_NOTHING = _Nothing()
_ALONE = 2  # references to an object that only a local variable holds, and the call that counts them


def _held(container: Any, key: Any) -> Any:
    try:
        held = container[key]
    except (KeyError, IndexError):
        held = None
    if not isinstance(held, torch.Tensor):
        raise NotReplayable(f"what is kept under {key!r} is no tensor")
    return held


def _host_argument(arguments: Arguments, source: torch.Tensor) -> int:
    for number, tensor in enumerate(arguments.host):
        if tensor.data_ptr() == source.data_ptr() and tensor.shape == source.shape and tensor.stride() == source.stride():
            if tensor.dtype is source.dtype:
                return number
    raise NotReplayable("a host tensor that is no argument is sent to the device. Send it before, or pass it")


def _constant(leaf: Any) -> Any:
    if leaf is None or type(leaf) in (int, float, bool, str, complex, torch.dtype, torch.device, torch.Size):
        return leaf
    raise NotReplayable(f"the step returns a {type(leaf).__name__}. Return tensors, numbers, and tuples, lists or dicts of them")


def modes() -> tuple:
    """PyTorch's modes that change what an operation does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        torch.get_default_device() if torch._C._len_torch_function_stack() else None,
        torch._C._len_torch_dispatch_stack(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
