"""Guards: what must still be so for a replay. All of them hold, or the step's Python runs.

Objects are compared by identity; numbers and texts by value, once they were replaced by equal ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter, not_
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from surestep.replay.values import NotReplayable, same
from surestep.tensor import swaps

_MISSING = object()
_storage, _layout = itemgetter("_storage"), itemgetter("_layout")
_requires_grad, _hooks, _hooks_after = map(attrgetter, ("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks"))


class Appended(NamedTuple):
    """In place of a key: the end of a list, and how many the call has appended to it before."""

    number: int


class Guards:
    """What a walk through a step's code has read from outside of it."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[Mapping[Any, Any], dict[Any, Any], str]] = {}  # by mapping: its keys that were read
        self.absent: dict[int, tuple[Mapping[Any, Any], set[Any], str]] = {}
        self.wholes: dict[int, tuple[Mapping[Any, Any], tuple, tuple, str]] = {}
        self.sequences: dict[int, tuple[Sequence[Any], tuple, str]] = {}
        self.empty: dict[int, tuple[Any, str]] = {}
        self.cells: dict[int, tuple[Any, Any, str]] = {}
        self.codes: dict[int, tuple[Any, Any, Any, Any]] = {}
        self.types: dict[int, tuple[Any, type, dict | None]] = {}
        self.tensors: dict[int, tuple[torch.Tensor, str]] = {}
        self.orders: dict[int, tuple[type, tuple]] = {}
        self.counts: dict[int, tuple[Any, int, str]] = {}
        self.optimizers: dict[int, tuple[torch.optim.Optimizer, str]] = {}
        self.stepped: set[int] = set()  # identities of the optimizers' parameters
        self.classes: dict[type, Mapping[str, Any]] = {}
        self.slots: dict[tuple[int, str], tuple[Any, Any, Any, str]] = {}
        self.unfilled: dict[tuple[int, Any], tuple[Mapping[Any, Any], Any, str]] = {}
        self.sets: dict[int, tuple[set, frozenset, str]] = {}
        self.returns: list[tuple[Any, str, int]] = []  # what the step's `return`s give, and where they stand
        self.schedulers: list[Any] = []  # whose step() the call calls
        self.closures = 0  # how many step closures the call adds
        self.reduces = False  # whether gradients are reduced over the processes, in `xm.optimizer_step`
        self.closed: dict[int, Container[Any]] = {}  # mappings that the call has changed by now, and their keys that it hasn't
        self.kept: dict[tuple[int, Any], tuple[Any, Any]] = {}  # where tensors of the call are kept: a container and a key
        self.lines: dict[tuple[int, Any], tuple[str, int]] = {}  # where the code says so

    # What the walk notes

    def of_class(self, kind: Any) -> Mapping[str, Any]:
        """What a class holds: always the same view, so that nothing is guarded twice."""
        return self.classes.setdefault(kind, vars(kind))

    def keep(self, container: Any, key: Any, file: str, line: int) -> None:
        """``container[key]`` is a tensor that the call makes; an object's ``__dict__`` for an attribute, and ``Appended`` to a list."""
        self.kept[id(container), key] = (container, key)
        self.lines[id(container), key] = (file, line)

    def returned(self) -> tuple[str | None, int]:
        """The file and line of the step's last ``return``; None for a lambda, or a module of PyTorch's."""
        return self.returns[-1][1:] if self.returns else (None, 0)

    def close(self, mapping: Mapping[Any, Any], but: Container[Any]) -> None:
        """From here on the call may not read the mapping, but for some keys: Python that a replay runs at its end has changed it."""
        self.closed[id(mapping)] = but

    def _open(self, mapping: Any, key: Any, path: str) -> None:
        if id(mapping) in self.closed and key not in self.closed[id(mapping)]:
            raise NotReplayable(f"{path} {key} is read after a scheduler's step(). Read it before, or step the scheduler after the call")

    def item(self, mapping: Mapping[Any, Any], key: Any, value: Any, path: str) -> None:
        """``mapping[key] is value``"""
        self._open(mapping, key, path)
        self.items.setdefault(id(mapping), (mapping, {}, path))[1][key] = value

    def lacks(self, mapping: Mapping[Any, Any], key: Any, path: str) -> None:
        """``key not in mapping``"""
        self.absent.setdefault(id(mapping), (mapping, set(), path))[1].add(key)

    def whole(self, mapping: Mapping[Any, Any], path: str) -> None:
        """The mapping's keys and values, in order."""
        self._open(mapping, "as a whole", path)
        self.wholes[id(mapping)] = (mapping, tuple(mapping), tuple(mapping.values()), path)

    def sequence(self, sequence: Sequence[Any], path: str) -> None:
        """The elements of a list."""
        self.sequences[id(sequence)] = (sequence, tuple(sequence), path)

    def none(self, container: Any, path: str) -> None:
        """The container is empty."""
        self.empty[id(container)] = (container, path)

    def unused(self, mapping: Mapping[Any, Any], key: Any, path: str) -> None:
        """``mapping[key]`` is an empty container; which one, doesn't matter."""
        if mapping[key]:
            raise NotReplayable(f"{path} are used")
        self.unfilled[id(mapping), key] = (mapping, key, path)

    def cell(self, cell: Any, value: Any, path: str) -> None:
        """The variable of an enclosing function."""
        self.cells[id(cell)] = (cell, value, path)

    def order(self, kind: Any) -> None:
        """The class's bases, in the order in which they are asked."""
        self.orders[id(kind)] = (kind, kind.__mro__)

    def count(self, container: Any, path: str) -> None:
        """How many entries there are, whatever they hold."""
        self.counts[id(container)] = (container, len(container), path)

    def code(self, function: Any) -> None:
        """The function's code and defaults: notebooks replace them when a cell is edited."""
        self.codes[id(function)] = (function, function.__code__, function.__defaults__, function.__kwdefaults__)
        if function.__kwdefaults__ is not None:
            self.whole(function.__kwdefaults__, f"{function.__name__}'s defaults ")

    def type(self, thing: Any) -> None:
        """The object's class, and which dict holds its attributes."""
        self.types[id(thing)] = (thing, type(thing), None if isinstance(thing, type) else getattr(thing, "__dict__", None))

    def slot(self, thing: Any, member: Any, value: Any, path: str) -> None:
        """``member``, a slot of the object's class, holds this value."""
        self.slots[id(thing), member.__name__] = (thing, member.__get__, value, path)

    def members(self, held: set, path: str) -> None:
        """What a set of numbers and texts holds, in whatever order."""
        self.sets[id(held)] = (held, frozenset(held), path)

    def tensor(self, tensor: torch.Tensor, path: str) -> None:
        """The tensor's memory, how it lies there, and whether it wants a gradient."""
        self.tensors.setdefault(id(tensor), (tensor, path))

    # What holds

    def compiled(self) -> list[tuple[Callable[[], bool], Callable[[], str]]]:
        """The guards as functions: does it hold, and if not, what changed."""
        checks: list[tuple[Callable[[], bool], Callable[[], str]]] = []
        if self.items:
            checks.append(_items(list(self.items.values())))
        if self.absent:
            checks.append(_absent(list(self.absent.values())))
        if self.wholes:
            checks.append(_wholes(list(self.wholes.values())))
        if self.sequences:
            checks.append(_sequences(list(self.sequences.values())))
        if self.empty:
            checks.append(_empty(list(self.empty.values())))
        if self.cells:
            checks.append(_cells(list(self.cells.values())))
        if self.codes:
            checks.append(_codes(list(self.codes.values())))
        if self.types:
            checks.append(_types(list(self.types.values())))
        if self.tensors:
            checks.append(_tensors(list(self.tensors.values())))
        if self.orders:
            checks.append(_orders(list(self.orders.values())))
        if self.slots:
            checks.append(_slots(list(self.slots.values())))
        if self.unfilled:
            checks.append(_unfilled(list(self.unfilled.values())))
        if self.sets:
            checks.append(_sets(list(self.sets.values())))
        if self.counts:
            checks.append(_counts(list(self.counts.values())))
        return checks


def _changed(mapping: Mapping[Any, Any], expected: Mapping[Any, Any], path: str) -> str:
    for key, value in expected.items():
        now = mapping.get(key, _MISSING)
        if now is not value:
            what = f"{path}{key}" if path.endswith((".", " ")) or not path else f"{path}.{key}"
            return f"{what} was {_shown(value)} and is {'gone' if now is _MISSING else _other(value, now)}"
    return f"{path} has other entries"


def _other(before: Any, now: Any) -> str:
    """The object that is there now, told apart from one that looks the same."""
    text = _shown(now)
    return f"another object: {text}" if text == _shown(before) else text


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (torch.nn.Module, dict, list)):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


_MANY = 200  # conditions that are worth a function of their own: more take longer to compile than they save


def together(conditions: list[tuple[str, tuple[Any, ...]]]) -> Callable[[], bool]:
    """One function for many conditions: compiled, it takes a third of the time of calls for each.

    A condition is an expression with ``{}`` for each of its objects.
    """
    if len(conditions) > _MANY:
        return _alike(conditions)
    names: dict[int, str] = {}
    things = [thing for _, of in conditions for thing in of]
    for thing in things:
        names.setdefault(id(thing), f"_{len(names)}")
    text = " and ".join(expression.format(*(names[id(thing)] for thing in of)) for expression, of in conditions)
    made: dict[str, Any] = {"same": same}
    exec(f"def make({', '.join(names.values())}):\n    def holds():\n        return {text or True}\n    return holds", made)
    return made["make"](*{id(thing): thing for thing in things}.values())


def _alike(conditions: list[tuple[str, tuple[Any, ...]]]) -> Callable[[], bool]:
    """The same with a function for each expression, which is called for all objects that it is about."""
    kinds: dict[str, list[tuple[Any, ...]]] = {}
    for expression, of in conditions:
        kinds.setdefault(expression, []).append(of)
    checks = []
    for expression, rows in kinds.items():
        names = [f"_{position}" for position in range(len(rows[0]))]
        check = eval(f"lambda {', '.join(names)}: {expression.format(*names)}", {"same": same})
        checks.append((check, list(zip(*rows, strict=True))))
    return lambda: all(all(map(check, *columns)) for check, columns in checks)


def _entry(key: Any) -> tuple[str, tuple[Any, ...]]:
    """``mapping[key]``, to be written into a condition."""
    return (f"{{}}[{key!r}]", ()) if type(key) is str and key.isidentifier() else ("{}[{}]", (key,))


class _Read(NamedTuple):
    """Something that was read from outside: how, and what it was."""

    expression: str
    things: tuple[Any, ...]
    get: Callable[[], Any]  # the same; `_MISSING` where it isn't there any more
    value: Any
    path: str


def _reads(reads: list[_Read]) -> Any:
    """All still hold the same object; or an equal number or text, where it was replaced by one."""
    replaced: set[int] = set()  # positions at which an equal object was seen

    def made() -> Callable[[], bool]:
        return together(
            [
                ("same(" + read.expression + ", {})" if position in replaced else read.expression + " is {}", (*read.things, read.value))
                for position, read in enumerate(reads)
            ]
        )

    holding = made()

    def holds() -> bool:
        nonlocal holding
        try:
            if holding():
                return True
        except (KeyError, ValueError):  # gone; a deleted variable
            return False
        others = [position for position, read in enumerate(reads) if read.get() is not read.value]
        if replaced.issuperset(others) or not all(same(reads[position].get(), reads[position].value) for position in others):
            return False
        replaced.update(others)
        holding = made()
        return True

    def what() -> str:
        for read in reads:
            now = read.get()
            if now is not read.value and not same(now, read.value):
                return f"{read.path} was {_shown(read.value)} and is {'gone' if now is _MISSING else _other(read.value, now)}"
        return "something that the step reads changed"

    return holds, what


def _items(read: list[tuple[Mapping[Any, Any], dict[Any, Any], str]]) -> Any:
    reads = []
    for mapping, expected, path in read:
        for key, value in expected.items():
            expression, things = _entry(key)
            what = f"{path}{key}" if path.endswith((".", " ")) or not path else f"{path}.{key}"
            reads.append(_Read(expression, (mapping, *things), partial(mapping.get, key, _MISSING), value, what))
    return _reads(reads)


def _absent(read: list[tuple[Mapping[Any, Any], set[Any], str]]) -> Any:
    mappings = [mapping for mapping, keys, _ in read for _ in keys]
    names = [key for _, keys, _ in read for key in keys]

    def what() -> str:
        path, name = next((path, key) for mapping, keys, path in read for key in keys if key in mapping)
        return f"{path} has {name!r} now"

    return together([("{} not in {}", (name, mapping)) for mapping, name in zip(mappings, names, strict=True)]), what


def _codes(functions: list[tuple[Any, Any, Any, Any]]) -> Any:
    text = "{0}.__code__ is {1} and {0}.__defaults__ is {2} and {0}.__kwdefaults__ is {3}"
    return together([(text, each) for each in functions]), lambda: "the code of a function was replaced"


def _wholes(read: list[tuple[Mapping[Any, Any], tuple, tuple, str]]) -> Any:
    mappings = [mapping for mapping, _, _, _ in read]
    counts = [len(keys) for _, keys, _, _ in read]
    entries = [mapping.values() for mapping in mappings]  # views: they show what is there when they are asked
    all_values = [value for _, _, values, _ in read for value in values]
    texts = [all(type(key) is str for key in keys) for _, keys, _, _ in read]
    named, others = list(compress(mappings, texts)), list(compress(mappings, map(not_, texts)))
    names = [key for mapping in named for key in mapping]
    objects = [key for mapping in others for key in mapping]  # parameters, say, which can't be compared

    def holds() -> bool:
        """In C, as an optimizer's state is hundreds of these."""
        return (
            list(map(len, mappings)) == counts
            and all(map(is_, chain.from_iterable(entries), all_values))
            and list(chain.from_iterable(named)) == names
            and all(map(is_, chain.from_iterable(others), objects))
        )

    def what() -> str:
        for mapping, keys, values, path in read:
            if len(mapping) != len(keys) or not all(map(is_, mapping.values(), values)) or not all(map(is_, mapping, keys)):
                return _changed(mapping, dict(zip(keys, values, strict=True)), path)
        return "entries that the step reads"

    return holds, what


def _sequences(read: list[tuple[Sequence[Any], tuple, str]]) -> Any:
    lists = [sequence for sequence, _, _ in read]
    lengths = [len(values) for _, values, _ in read]
    elements = [value for _, values, _ in read for value in values]

    def what() -> str:
        for sequence, values, path in read:
            if len(sequence) != len(values) or not all(map(is_, sequence, values)):
                return f"{path} has other elements"
        return "elements that the step reads"

    return lambda: list(map(len, lists)) == lengths and all(map(is_, chain.from_iterable(lists), elements)), what


def _empty(containers: list[tuple[Any, str]]) -> Any:
    things = [container for container, _ in containers]
    return lambda: not any(things), lambda: f"{next(path for thing, path in containers if thing)} is not empty any more"


def _cells(cells: list[tuple[Any, Any, str]]) -> Any:
    return _reads([_Read("{}.cell_contents", (cell,), partial(_content, cell), value, path) for cell, value, path in cells])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable was deleted
        return _MISSING


def _types(objects: list[tuple[Any, type, dict | None]]) -> Any:
    conditions: list[tuple[str, tuple[Any, ...]]] = [("type({}) is {}", (thing, kind)) for thing, kind, _ in objects]
    conditions += [("{}.__dict__ is {}", (thing, own)) for thing, _, own in objects if own is not None]
    return together(conditions), lambda: "an object has another class, or another __dict__"


def _tensors(tensors: list[tuple[torch.Tensor, str]]) -> Any:
    """Tensors that are read or written in place: their memory stays the same object, whatever values it holds."""
    owners = [tensor for tensor, _ in tensors if hasattr(tensor, "_storage")]
    ours = list(map(vars, owners))
    storages, layouts = list(map(_storage, ours)), list(map(_layout, ours))
    all_tensors = [tensor for tensor, _ in tensors]
    wanted = list(map(_requires_grad, all_tensors))
    trained = list(compress(all_tensors, wanted))
    leaves = [(tensor, path) for tensor, path in tensors if tensor.requires_grad and tensor.is_leaf]
    check_accumulators(leaves)
    registered = -1  # grows with each hook of whatever kind
    swapped = swaps.count

    def holds() -> bool:
        nonlocal registered, swapped
        if swapped != swaps.count:
            if not all(map(is_, map(vars, owners), ours)):
                return False
            swapped = swaps.count
        if not (
            all(map(is_, map(_storage, ours), storages))
            and all(map(is_, map(_layout, ours), layouts))
            and list(map(_requires_grad, all_tensors)) == wanted
        ):
            return False
        if registered != RemovableHandle.next_id:
            if any(map(_hooks, trained)) or any(map(_hooks_after, trained)) or any(map(_is_held, map(itemgetter(0), leaves))):
                return False
            registered = RemovableHandle.next_id
        return True

    def what() -> str:
        for (tensor, path), want in zip(tensors, wanted, strict=True):
            if tensor.requires_grad is not want:
                return f"{path}.requires_grad is {tensor.requires_grad}"
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks or (want and tensor.is_leaf and _is_held(tensor)):
                return f"{path} has a gradient hook"
        return "a tensor's memory was replaced (.data =, set_, swap_tensors, another shape)"

    return holds, what


def check_accumulators(leaves: list[tuple[torch.Tensor, str]]) -> None:
    """Raises ``NotReplayable`` where somebody holds the node that accumulates a gradient: it may have hooks, which PyTorch doesn't show."""
    for tensor, path in leaves:
        if _is_held(tensor):
            raise NotReplayable(f"{path}'s gradient accumulator is held by somebody, who may have hooked it")


def _is_held(leaf: torch.Tensor) -> bool:
    """Whether somebody has the node in Python: without, it goes with its graph, and its hooks do."""
    if torch.is_inference_mode_enabled():
        return False
    with torch.enable_grad():
        graph: Any = leaf.view_as(leaf)  # which holds the node, so that the count doesn't depend on whether others do
    node = graph.grad_fn.next_functions[0][0]
    return sys.getrefcount(node) > 3


def _orders(kinds: list[tuple[type, tuple]]) -> Any:
    return together([("{}.__mro__ is {}", each) for each in kinds]), lambda: "the bases of a class changed"


def _slots(read: list[tuple[Any, Any, Any, str]]) -> Any:
    def changed() -> list[str]:
        try:
            return [path for thing, get, value, path in read if get(thing) is not value]
        except AttributeError:  # it was deleted
            return ["an attribute"]

    return lambda: not changed(), lambda: f"{changed()[0]} has another value"


def _unfilled(read: list[tuple[Mapping[Any, Any], Any, str]]) -> Any:
    return (
        lambda: not any(mapping[key] for mapping, key, _ in read),
        lambda: f"{next(path for mapping, key, path in read if mapping[key])} are used",
    )


def _sets(read: list[tuple[set, frozenset, str]]) -> Any:
    def changed() -> list[str]:
        return [path for held, members, path in read if held != members]

    return lambda: not changed(), lambda: f"{changed()[0]} has other members"


def _counts(containers: list[tuple[Any, int, str]]) -> Any:
    things, counts = [thing for thing, _, _ in containers], [count for _, count, _ in containers]

    def what() -> str:
        return next((f"{path} has other entries" for thing, count, path in containers if len(thing) != count), "entries were added")

    return lambda: list(map(len, things)) == counts, what
