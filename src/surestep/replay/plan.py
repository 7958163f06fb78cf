"""A plan: how a proven call is run again without its Python."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from itertools import chain, repeat
from operator import attrgetter, gt, is_, is_not
from typing import Any

import numpy as np
import torch
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_unflatten

from surestep import _compat
from surestep.execute import host_kernels, spmd, transfer
from surestep.execute.interrupts import Held
from surestep.execute.program import Program, numbers_to_device
from surestep.execute.world import replica
from surestep.loop import drift
from surestep.loop.boundaries import add_step_closure, boundary
from surestep.loop.updates import are_numbers, flags_of, numbers_of
from surestep.observe import events
from surestep.observe.events import Cause
from surestep.replay.binding import Binding, Entry, Result, Same
from surestep.replay.capture import Taken
from surestep.replay.guards import Appended, Guards
from surestep.replay.signature import Arguments
from surestep.replay.values import NotReplayable
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh
from surestep.trace.recorder import Recorder
from surestep.trace.storage import Storage

_array = attrgetter("array")
_grad = attrgetter("grad")
_exported = attrgetter("exported")
_storage = attrgetter("_storage")
_lies = attrgetter("_layout")
_whole = attrgetter("layout")


class Plan(Binding):
    """One proven call."""

    def __init__(self, recorder: Recorder, guards: Guards, arguments: Arguments, before: Entry, taken: Taken, result: Any, mode: tuple):
        super().__init__(recorder, guards, arguments, before, taken, result)
        self.checks = guards.compiled()
        self.modes = mode  # before the call
        if taken.collectives and not guards.reduces:
            raise NotReplayable("there are collectives inside that are not those of xm.optimizer_step")
        self.collectives = taken.collectives
        self.compared = [optimizer for optimizer, _ in guards.optimizers.values()] if replica().size > 1 else []
        self.runs = 0
        self.same = False  # as the call before
        self.used_up: list[int] = []  # gradients of which nobody else may see what becomes of them
        self.program: Program | None = None
        self.expected: Any = None  # what a replay would have given the program, while a recorded call is compared
        self.groups = [numbers.group for numbers in self.numbers]
        self.group_values = [group.values() for group in self.groups]  # views
        self.group_lengths = list(map(len, self.groups))
        self._note_groups()
        self.steady = False  # whether the groups held the very objects that the numbers were taken from, when the guards were asked
        self.float_array: Any = None
        self.int_array: Any = None
        self.reused: list[Callable[[], Storage | None]] = [_no_storage] * len(self.new_grads)  # weak, of the gradients made by the last run
        self.where = spmd.target(recorder.device, recorder.spread)
        self.lie = tuple(leaf.sharding for leaf in taken.leaves) if recorder.spread else ()
        self.said = [tensor._storage.sharding for tensor in arguments.tensors]  # of the arguments, after the call

    def ready(self, program: Program) -> None:
        """The program is known: where each output stands among its results."""
        place = {index: position for position, index in enumerate(program.outputs)}
        self.program = program
        self.output_layouts = {place[index]: layout for index, layout in self.output_layouts.items()}
        self.to_kept = [(place[index], storage) for index, storage in self.to_kept]
        self.to_argument = [(place[index], number) for index, number in self.to_argument]
        self.to_grad = [(place[index], number) for index, number in self.to_grad]
        self.grad_places = [place[index] for index, _, _, _ in self.new_grads]
        self.grad_lies = [layout for _, _, layout, _ in self.new_grads]
        self.grad_wholes = [whole for _, _, _, whole in self.new_grads]
        self.with_grad = [self.params[number] for _, number, _, _ in self.new_grads]
        self.results = [
            leaf._replace(output=place[leaf.output]) if isinstance(leaf, Result) and leaf.output is not None else leaf
            for leaf in self.results
        ]
        written = {number for _, number in self.to_argument}
        if any(position in program.donated and number not in written for position, number in self.from_argument):
            raise NotReplayable("an argument's memory was given away")
        kept = {number for _, number in self.to_grad}
        given = [number for position, number in self.from_grad if position in program.donated and number not in kept]
        self.used_up = list({*given, *self.gone})

    def differs(self, arguments: Arguments, before: Entry, taken: Taken, result: Any) -> str | None:
        """Whether a recorded call did something else than a replay would have done, and what."""
        again = Binding(self.recorder, self.guards, arguments, before, taken, result)  # raises where it isn't to be replayed at all
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

    def pin(self, before: Binding) -> None:
        """That an offset goes with an argument's is known where both were others in an earlier call that is to be like this one."""
        alike = {shift.argument for shift in self.shifts if self.lay[shift.argument] is before.lay[shift.argument]}
        self.fixed += alike
        self.shifts = [shift for shift in self.shifts if shift.argument not in alike]

    # Replay

    def changed(self) -> str | None:
        """What is not as it was; None where nothing changed."""
        if modes() != self.modes:
            return "a mode of PyTorch's changed (gradients, autocast, default dtype or device)"
        for holds, what in self.checks:
            if not holds():
                return what()
        self.steady = self._same_groups()
        if not self.steady:
            for numbers in self.numbers:
                if flags_of(numbers.rule, numbers.group) != numbers.flags:
                    return "an option of the optimizer changed"
                if not are_numbers(numbers_of(numbers.rule, numbers.group)):
                    return "a number of the optimizer is a tensor now"
        if not all(counts.uniform for counts in self.uniform):
            return "an optimizer's counts of steps were written"
        if list(map(is_, map(_grad, self.params), repeat(None))) != self.missing:
            return "there are other gradients than there were"
        return None

    def inputs(self, arguments: Arguments) -> tuple[list[Any], Any, Any] | None:
        """The program's leaves and numbers for these arguments; None where the memory lies otherwise than it did."""
        tensors = arguments.tensors
        recorder = self.recorder
        if any(tensor._storage.trace is not recorder for tensor in tensors):
            return None
        if any(tensors[number]._layout is not self.lay[number] for number in self.fixed) or not self.apart(arguments):
            return None
        if self.shared and not self.as_far_apart(arguments):
            return None
        storages: list[Any] = list(self.storages)
        for position, number in self.from_argument:
            storages[position] = tensors[number]._storage
        if self.used_up and not _storages_if_alone([self.params[number].grad for number in self.used_up]):
            return None
        if self.from_grad:
            grads = list(map(_grad, self.params))
            for number, layout, whole in self.grad_layouts:
                if grads[number]._layout is not layout or grads[number]._storage.layout is not whole:
                    return None
            for position, number in self.from_grad:
                storages[position] = grads[number]._storage
            of_grads = {id(storages[position]) for position, _ in self.from_grad}
            others = {*self.outside, *(id(tensor._storage) for tensor in tensors)}
            if len(of_grads) < len(self.from_grad) or not of_grads.isdisjoint(others):
                return None
        for position, _ in self.from_host:
            storages[position] = _NOTHING
        if any(map(_exported, storages)):
            return None
        if recorder.spread:
            self._place(storages)
        leaves = list(map(_array, storages))
        for position, number in self.from_host:
            leaves[position] = transfer.to_device(arguments.host[number], recorder.device)
            if recorder.spread:
                leaves[position] = spmd.placed(leaves[position], self.lie[position])
        if not all(map(is_not, leaves, repeat(None))):
            return None
        if recorder.spread and tuple(leaf.sharding for leaf in leaves) != self.lie:
            return None
        return leaves, self._floats(), self._ints(tensors)

    def _place(self, storages: list[Any]) -> None:
        """Under SPMD arguments are brought to lie over the devices as the first call's did, which marking them there would do."""
        for position, _ in self.from_argument:
            storage = storages[position]
            if storage.array is not None:
                storage.array = spmd.placed(storage.array, self.lie[position])

    def _same_groups(self) -> bool:
        """Whether the optimizers' groups hold the very objects that the numbers were taken from."""
        return (
            all(map(is_, chain.from_iterable(self.group_values), self.seen))
            and list(map(len, self.groups)) == self.group_lengths
            and (not self.lists or list(map(list, self.lists)) == self.listed)
        )

    def _note_groups(self) -> None:
        """What the groups hold now; where numbers are held in a list (betas of a configuration file), what that holds."""
        self.seen = [value for values in self.group_values for value in values]
        self.lists = [value for group in self.groups for name, value in group.items() if type(value) is list and name != "params"]
        self.listed = list(map(list, self.lists))

    def _floats(self) -> Any:
        """The program's floats, on the device; sent anew only where an optimizer's numbers had changed as ``changed()`` looked at them."""
        if self.float_array is None or not self.steady:
            for numbers in self.numbers:
                self.floats[numbers.position : numbers.position + numbers.count] = numbers_of(numbers.rule, numbers.group)
            self._note_groups()
            self.float_array, self.steady = numbers_to_device(self.floats, self.where), True
        return self.float_array

    def _ints(self, tensors: list[XlaTensor]) -> Any:
        if self.draws or self.shifts:
            ints = self.ints.copy()
            for position, number, beyond in self.shifts:
                ints[position] = tensors[number]._layout.offset + beyond
            for draw in self.draws:
                stream = draw.generator._stream
                ints[draw.position] = stream.seed if stream.seed < 1 << 63 else stream.seed - (1 << 64)
                ints[draw.position + 1] = stream.offset
            return ints
        if self.int_array is None:
            self.int_array = numbers_to_device(self.ints, self.where)
        return self.int_array

    def run(self, arguments: Arguments, inputs: tuple[list[Any], Any, Any]) -> list[Any]:
        """Calls the program; what it wrote is written. Gives the leaves of what the call returned."""
        program = self.program
        assert program is not None
        tensors = arguments.tensors
        start = time.perf_counter()
        host_kernels.prepare()
        self.recorder.running.check()
        if self.collectives and self.recorder.agree is not None:
            self.recorder.agree(self.collectives)
        self.recorder.meet(f"a replayed step of {len(inputs[0])} inputs", None)
        with Held():
            try:
                arrays = program(*inputs)
            except BaseException as error:
                self._lost(inputs[0], tensors, error)
                raise
            self.recorder.running.add(arrays[program.smallest], program.name)
            if self.recorder.spread:
                for tensor, sharding in zip(tensors, self.said, strict=True):
                    tensor._storage.sharding = sharding
            for position, storage in self.to_kept:
                storage.array = arrays[position]
            for position, number in self.to_argument:
                tensors[number]._storage.array = arrays[position]
            for position, number in self.to_grad:
                self.params[number].grad._storage.array = arrays[position]  # type: ignore[missing-attribute]
            self._set_grads(arrays)
            for draw in self.draws:
                draw.generator._stream.offset += draw.count
        if self.written:
            torch.autograd.graph.increment_version(self.written)
        if self.to_argument:
            torch.autograd.graph.increment_version([tensors[number] for _, number in self.to_argument])
        if self.to_grad:
            torch.autograd.graph.increment_version(self.params[number].grad for _, number in self.to_grad)  # type: ignore[bad-argument-type]
        self.runs += 1
        events.emit("replay", None, program=program.name, seconds=time.perf_counter() - start)
        return self._made(arrays, tensors)

    def finish(self, made: list[Any]) -> Any:
        """What the call returns, of what was made; and its effects in Python: tensors are kept, schedulers step, closures are called."""
        if self.keeps:
            kept = made[len(made) - len(self.keeps) :]
            del made[len(made) - len(self.keeps) :]
            for (container, key), tensor in zip(self.keeps, kept, strict=True):
                if type(key) is Appended:
                    container.append(tensor)
                else:
                    container[key] = tensor
        for optimizer in self.compared:
            drift.stepped(optimizer)
        result = made[0] if self.single else tree_unflatten(made, self.spec)
        for scheduler in self.guards.schedulers:
            scheduler.step()
        if not self.closures:
            return result
        result, arguments = result
        for (closure, run_async), given in zip(self.closures, arguments, strict=True):
            add_step_closure(closure, given, run_async)
        boundary(Cause.CLOSURE)
        return result

    def _set_grads(self, arrays: Any) -> None:
        """New gradients. Where nobody else holds those of the run before, their objects go on with the new values, which costs less."""
        grads = list(map(_grad, self.with_grad))
        storages = _storages_if_alone(grads)
        if (
            storages == [made() for made in self.reused]
            and all(map(is_, map(_lies, grads), self.grad_lies))
            and all(map(is_, map(_whole, storages), self.grad_wholes))
        ):
            for storage, position in zip(storages, self.grad_places, strict=True):
                storage.array, storage.serial = arrays[position], 0
        else:
            storages = [Storage(self.recorder, whole, arrays[at]) for at, whole in zip(self.grad_places, self.grad_wholes, strict=True)]
            self.reused = list(map(weakref.ref, storages))
            for param, storage, layout in zip(self.with_grad, storages, self.grad_lies, strict=True):
                param.grad = fresh(storage) if layout is storage.layout else alias(storage, layout, None)
        for number in self.no_grads:
            self.params[number].grad = None

    def _made(self, arrays: Any, tensors: list[XlaTensor]) -> list[Any]:
        made: dict[int, XlaTensor] = {}
        found = []
        for leaf in self.results:
            if isinstance(leaf, Same):
                found.append(found[leaf.position])
            elif not isinstance(leaf, Result):
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


def _storages_if_alone(grads: list[Any]) -> list[Storage]:
    """The storages of parameters' gradients, if nothing else holds any of these: no variable, no graph, no other tensor over its memory.
    Else, or where there are none: empty.
    """
    if not all(map(is_, map(type, grads), repeat(XlaTensor))):
        return []
    alone = 3  # PyTorch's for the parameter (a tensor's for its storage), the list, and the call that counts them
    # a tensor's contents have the object and the parameter; a graph is no object of Python's
    if any(map(gt, map(sys.getrefcount, grads), repeat(alone))) or any(map(gt, map(_compat.use_count, grads), repeat(2))):
        return []
    storages = list(map(_storage, grads))
    return [] if any(map(gt, map(sys.getrefcount, storages), repeat(alone))) else storages


def _no_storage() -> None:
    """Stands for a weak reference to a storage that there isn't yet."""


class _Nothing:
    array = True  # stands for an array that is sent in a moment
    exported = False


_NOTHING = _Nothing()


def refuse_modes() -> None:
    """Raises where a mode is on whose Python sees each operation."""
    functions = torch._C._len_torch_function_stack()
    if functions > 1 or (functions and not isinstance(torch.overrides._get_current_function_mode(), DeviceContext)):
        raise NotReplayable("a TorchFunctionMode is on, whose Python must run at each call")
    if torch._C._len_torch_dispatch_stack():
        raise NotReplayable("a TorchDispatchMode is on, whose Python must run at each call")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise NotReplayable("hooks on saved tensors are set, whose Python must run at each call")
    if _compat.in_dual_level():
        raise NotReplayable("derivatives are computed forward (torch.autograd.forward_ad), which a replay doesn't")


def modes() -> tuple:
    """PyTorch's modes that change what an operation does."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        torch.get_default_device() if torch._C._len_torch_function_stack() else None,
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.is_anomaly_enabled(),
        _compat.in_dual_level(),
        torch.are_deterministic_algorithms_enabled(),
    )
