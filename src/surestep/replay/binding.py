"""Where each leaf of a recorded call's program came from, and where each of its outputs went: what must be known to do the same without its
Python.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch

from surestep.control.counting import is_place
from surestep.loop.updates import RULES, flags_of
from surestep.replay.capture import Taken, Where, graph_nodes
from surestep.replay.guards import Appended, Guards
from surestep.replay.results import flatten
from surestep.replay.signature import Arguments
from surestep.replay.values import NotReplayable
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout
from surestep.trace.recorder import Recorder
from surestep.trace.storage import Storage


class Gone(NamedTuple):
    """A gradient that the call took away from its parameter, and that nobody else holds. Its memory may live on in another tensor."""

    array: Any  # its value before the call
    layout: Layout
    whole: Layout  # its storage's


class Entry:
    """The gradients of all that a step can see, before it runs; None where there is none."""

    def __init__(self, guards: Guards):
        self.params: list[torch.Tensor] = [tensor for tensor, _ in guards.tensors.values() if _may_have_a_gradient(tensor, guards)]
        self.grads: list[torch.Tensor | Gone | None] = [param.grad for param in self.params]
        self.arrays = [grad._storage.array if type(grad) is XlaTensor else None for grad in self.grads]

    def let_go(self) -> None:
        """After the call: a gradient that lives on only because it is noted here is no output of the program."""
        for number, (param, array) in enumerate(zip(self.params, self.arrays, strict=True)):
            grad = self.grads[number]
            if type(grad) is not XlaTensor or param.grad is grad:
                continue
            tensor, gone = weakref.ref(grad), Gone(array, grad._layout, grad._storage.layout)
            self.grads[number] = grad = None
            living = tensor()
            self.grads[number] = gone if living is None else living


def _may_have_a_gradient(tensor: torch.Tensor, guards: Guards) -> bool:
    """A parameter that is frozen may have one from before, or be given one: an optimizer steps it then, and `zero_grad` takes it away."""
    if not isinstance(tensor, XlaTensor) or not tensor.is_leaf:
        return False
    return tensor.requires_grad or isinstance(tensor, torch.nn.Parameter) or id(tensor) in guards.stepped


class Result(NamedTuple):
    """One tensor among what the call returned: an argument, a tensor from outside, or one that the call made."""

    argument: int | None
    kept: torch.Tensor | None
    output: int | None  # position among the program's outputs
    layout: Layout | None


class Same(NamedTuple):
    """The same object as an earlier tensor among what the call returned."""

    position: int


class Numbers(NamedTuple):
    """Where an optimizer's numbers stand among the program's."""

    position: int
    count: int
    rule: Any
    flags: list[str]
    group: dict[str, Any]


class Shift(NamedTuple):
    """An offset among the program's ints, which goes with the offset of an argument."""

    position: int
    argument: int
    beyond: int  # the argument's own


class _Owners(NamedTuple):
    """Whose memory a storage is, by its identity: an argument's or a gradient's (their positions), or a tensor's from outside. A gradient
    that is gone is told by its array.
    """

    arguments: dict[int, int]
    grads: dict[int, int]
    outside: dict[int, torch.Tensor]


class Binding:
    """A recorded call: where its program's leaves came from, and where what it computed went."""

    def __init__(self, recorder: Recorder, guards: Guards, arguments: Arguments, before: Entry, taken: Taken, result: Any):
        self.recorder = recorder
        self.guards = guards
        self.objects = arguments.objects
        self.place = taken.place
        self.count_arguments = len(arguments.tensors)
        self.params = before.params
        self.missing = [grad is None for grad in before.grads]
        of = _Owners(
            {id(tensor._storage): position for position, tensor in enumerate(arguments.tensors)},
            {
                id(grad.array if isinstance(grad, Gone) else grad._storage): position  # type: ignore[missing-attribute]
                for position, grad in enumerate(before.grads)
                if type(grad) in (Gone, XlaTensor)
            },
            {id(tensor._storage): tensor for tensor, _ in guards.tensors.values() if type(tensor) is XlaTensor},
        )
        self._bind_leaves(of, arguments, before, taken)
        self._bind_numbers(taken)
        self._bind_views(arguments, taken)
        self._bind_results(arguments, before, taken, result)
        self._bind_outputs(of, before, taken)
        self.original = self.bindings()

    def _bind_leaves(self, of: _Owners, arguments: Arguments, before: Entry, taken: Taken) -> None:
        sent = {id(array): (source, where) for source, array, where in taken.uploads}
        if any(tensor.requires_grad for tensor in arguments.tensors):
            raise NotReplayable(
                "an argument wants a gradient, of which a replay would not hear. Pass it detached, or hold it as parameters are"
            )
        if len(set(map(id, taken.leaves))) < len(taken.leaves) or len(of.grads) < sum(grad is not None for grad in before.grads):
            raise NotReplayable("two of the tensors that it reads share their memory, gradients maybe. Clone one of them before the step")
        self.kept: list[Storage] = []
        self.storages: list[Storage | None] = []
        self.from_argument: list[tuple[int, int]] = []
        self.from_host: list[tuple[int, int]] = []
        self.from_grad: list[tuple[int, int]] = []
        self.grad_layouts: list[tuple[int, Layout, Layout]] = []
        self.gone: list[int] = []  # gradients that the program reads and the call takes away
        for position, (array, storage) in enumerate(zip(taken.leaves, taken.owners, strict=True)):
            known = id(array if storage is None else storage)
            self.storages.append(None)
            if known in of.arguments:
                self.from_argument.append((position, of.arguments[known]))
            elif id(array) in sent:
                self.from_host.append((position, _host_argument(arguments, *sent[id(array)])))
            elif known in of.grads:
                number = of.grads[known]
                grad = before.grads[number]
                self.from_grad.append((position, number))
                if type(grad) is Gone:
                    self.gone.append(number)
                    self.grad_layouts.append((number, grad.layout, grad.whole))
                elif type(grad) is XlaTensor:
                    self.grad_layouts.append((number, grad._layout, grad._storage.layout))
            elif known in of.outside or (storage is not None and is_place(storage)):
                self.storages[-1] = storage
                self.kept.append(storage)  # type: ignore[bad-argument-type]
            else:
                raise NotReplayable(
                    "the step reads a tensor that its code doesn't show: an object of a library holds it, say. Pass it as an argument"
                )
        self.outside = frozenset(of.outside)  # identities of the storages of all tensors from outside that the code shows
        self._bind_shared(of, arguments, taken)
        if not self.apart(arguments):
            raise NotReplayable("two arguments, or an argument and a tensor from outside, share their memory. Pass a copy (.clone())")
        if len({tensor.data_ptr() for tensor in arguments.host if tensor.numel()}) < sum(tensor.numel() > 0 for tensor in arguments.host):
            raise NotReplayable("two arguments on the CPU share their memory. Pass a copy (.clone())")

    def _bind_shared(self, of: _Owners, arguments: Arguments, taken: Taken) -> None:
        """Arguments over one memory (``tokens[i:j], tokens[i + 1:j + 1]``) are as good as one, if it is only read."""
        tensors = arguments.tensors
        read = {number for position, number in self.from_argument if position in taken.reads}
        self.shared: list[tuple[int, int, int]] = []  # an argument, the one that stands for their memory, and how far behind that it begins
        for number, tensor in enumerate(tensors):
            one = of.arguments[id(tensor._storage)]
            if one != number and one in read:
                self.shared.append((number, one, tensor._layout.offset - tensors[one]._layout.offset))
        self.memories = len(tensors) - len(self.shared)

    def apart(self, arguments: Arguments) -> bool:
        """Whether no argument shares memory with another, but for those that shared it, or with a tensor from outside."""
        storages = [id(tensor._storage) for tensor in arguments.tensors]
        return (
            len(set(storages)) == self.memories
            and self.outside.isdisjoint(storages)
            and all(storages[number] == storages[one] for number, one, _ in self.shared)
        )

    def as_far_apart(self, arguments: Arguments) -> bool:
        """Whether arguments over one memory begin as far from each other as they did."""
        lay = [tensor._layout.offset for tensor in arguments.tensors]
        return all(lay[number] - lay[one] == distance for number, one, distance in self.shared)

    def _bind_numbers(self, taken: Taken) -> None:
        self.floats = np.array(taken.floats, np.float64)
        self.ints = np.array(taken.ints, np.int64)
        self.draws = taken.draws
        self.numbers: list[Numbers] = []
        self.uniform = [noted.uniform for noted in taken.updates if noted.uniform is not None]
        for noted in taken.updates:
            if noted.position is None:
                raise NotReplayable(
                    f"a step of {noted.rule} is written out in PyTorch's operations: a number of it is a tensor, or its parameters are "
                    f"complex or sparse"
                )
            rule = RULES[noted.rule]
            group = self._group_of(noted.param)
            self.numbers.append(Numbers(noted.position, len(rule.numbers), rule, flags_of(rule, group), group))

    def _bind_views(self, arguments: Arguments, taken: Taken) -> None:
        """Arguments that are views (``data[i]``) may begin elsewhere, where the program takes as a number at which offset it reads them."""
        self.lay = [tensor._layout for tensor in arguments.tensors]
        leaf_of = {number: position for position, number in self.from_argument}
        views = [number for number, tensor in enumerate(arguments.tensors) if tensor._layout is not tensor._storage.layout]
        moving = {position for position, reads in taken.reads.items() if reads.lifted}
        self.fixed = [number for number in views if number in leaf_of and leaf_of[number] not in moving]
        self.shifts = [
            Shift(place, number, int(self.ints[place]) - self.lay[number].offset)
            for number in views
            if number in leaf_of and number not in self.fixed
            for place in taken.reads[leaf_of[number]].positions
        ]

    def _group_of(self, param: torch.Tensor) -> dict[str, Any]:
        for optimizer, _ in self.guards.optimizers.values():
            for group in optimizer.param_groups:
                if any(param is each for each in group["params"]):
                    return group
        raise NotReplayable("an optimizer steps that the code doesn't show")

    def _bind_results(self, arguments: Arguments, before: Entry, taken: Taken, result: Any) -> None:
        self.closures = [(closure, run_async) for closure, _, run_async in taken.closures]
        if len(self.closures) != self.guards.closures:
            raise NotReplayable("a step closure is added that the code doesn't show")
        leaves, self.spec = flatten((result, [given for _, given, _ in taken.closures]) if self.closures else result)
        self.single = self.spec.is_leaf()
        self.keeps = list(self.guards.kept.values())
        told = [("the step returns", *self.guards.returned())] * len(leaves)
        told += [
            ("a list keeps" if type(key) is Appended else f"{key!r} keeps", *self.guards.lines[id(container), key])
            for container, key in self.keeps
        ]
        appended = Counter(id(container) for container, key in self.keeps if type(key) is Appended)
        leaves = [*leaves, *(_held(container, key, appended[id(container)]) for container, key in self.keeps)]
        places = {id(storage): index for index, storage in taken.outputs.items()}
        grads = [grad for param, grad in zip(before.params, before.grads, strict=True) for grad in (grad, param.grad)]
        others = {id(tensor._storage) for tensor in (*arguments.tensors, *grads) if type(tensor) is XlaTensor} | self.outside
        slots: dict[int, int] = {}
        known = {id(tensor): tensor for tensor, _ in self.guards.tensors.values()}
        of_argument = {id(tensor): position for position, tensor in enumerate(arguments.tensors)}
        consumed = (
            graph_nodes(taken.roots) if any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves) else set()
        )
        self.results: list[Any] = []
        self.output_layouts: dict[int, Layout] = {}
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                if leaf is not None and type(leaf) not in _CONSTANTS:
                    raise _unfit(told[position], f"{_named(leaf)}. Take tensors, Python's numbers, and tuples, lists or dicts of them")
                self.results.append(leaf)
            elif id(leaf) in slots:
                self.results.append(Same(slots[id(leaf)]))
            elif id(leaf) in of_argument:
                self.results.append(Result(of_argument[id(leaf)], None, None, None))
            elif id(leaf) in known:
                self.results.append(Result(None, known[id(leaf)], None, None))
            elif type(leaf) is XlaTensor and id(leaf._storage) in others:
                raise _unfit(told[position], "a view of an argument, a gradient or a tensor from outside. Take a copy: .clone()")
            elif type(leaf) is not XlaTensor or id(leaf._storage) not in places:
                raise _unfit(
                    told[position], "a tensor that the step doesn't compute: one of the CPU, or sent from there. Make it before the step"
                )
            elif leaf.grad_fn is not None and leaf.grad_fn not in consumed:
                what = "a tensor through which gradients are still to flow"
                raise _unfit(told[position], f"{what}. Put backward() into the step too, detach it, or call the step under torch.no_grad()")
            elif leaf.requires_grad and leaf.grad_fn is None:
                raise _unfit(told[position], "a new tensor that wants a gradient. Make it outside of the step, or detach it")
            else:
                slots[id(leaf)] = position
                self.results.append(Result(None, None, places[id(leaf._storage)], leaf._layout))
                self.output_layouts[places[id(leaf._storage)]] = leaf._storage.layout

    def _bind_outputs(self, of: _Owners, before: Entry, taken: Taken) -> None:
        returned = {leaf.output for leaf in self.results if isinstance(leaf, Result) and leaf.output is not None}
        self.new_grads: list[tuple[int, int, Layout, Layout]] = []
        self.no_grads: list[int] = []
        made: dict[int, int] = {}
        for number, (param, old) in enumerate(zip(before.params, before.grads, strict=True)):
            now = param.grad
            if now is old:
                continue
            if now is None:
                self.no_grads.append(number)
            elif type(now) is XlaTensor and id(now._storage) not in made and now.grad_fn is None:
                made[id(now._storage)] = number
            else:
                raise NotReplayable("two gradients share their memory, or one has a graph of its own")
        self.to_kept: list[tuple[int, Storage]] = []
        self.to_argument: list[tuple[int, int]] = []
        self.to_grad: list[tuple[int, int]] = []
        self.written: list[torch.Tensor] = []
        for index, storage in taken.outputs.items():
            known = id(storage)
            if known in of.arguments:
                self.to_argument.append((index, of.arguments[known]))
            elif known in made:
                number = made[known]
                self.new_grads.append((index, number, before.params[number].grad._layout, storage.layout))  # type: ignore[missing-attribute]
            elif known in of.grads and before.params[of.grads[known]].grad is before.grads[of.grads[known]]:
                self.to_grad.append((index, of.grads[known]))
            elif known in of.outside:
                self.to_kept.append((index, storage))
                self.written.append(of.outside[known])
            elif index not in returned:
                raise NotReplayable(
                    "a tensor that the step makes is kept somewhere: in an object of a library, on a context, in a cycle. Return it, or "
                    "write it in place"
                )
        if len(self.new_grads) < len(made):
            raise NotReplayable("a gradient is not computed by the step's program")

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
            self.closures,
        )


def _held(container: Any, key: Any, appended: int) -> Any:
    """What a call has kept there; ``appended`` is how many it has appended to this list."""
    try:
        held = container[key.number - appended if type(key) is Appended else key]
    except (KeyError, IndexError):
        held = None
    if not isinstance(held, torch.Tensor):
        raise NotReplayable(f"what is kept under {key!r} is no tensor")
    return held


def _host_argument(arguments: Arguments, source: torch.Tensor, where: Where) -> int:
    for number, tensor in enumerate(arguments.host):
        figures = [(each.data_ptr(), each.shape, each.stride(), each.dtype) for each in (tensor, source)]
        if figures[0] == figures[1]:
            return number
    raise NotReplayable("a host tensor that is no argument is sent to the device. Send it before the step, or pass it", *where)


_CONSTANTS = (int, float, bool, str, complex, torch.dtype, torch.device, torch.Size)


def _named(leaf: Any) -> str:
    kind = type(leaf)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _unfit(told: tuple[str, str | None, int], why: str) -> NotReplayable:
    """What can't be returned or kept, and where it is."""
    what, file, line = told
    return NotReplayable(f"{what} {why}", file, line)
