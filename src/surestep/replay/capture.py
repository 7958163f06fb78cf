"""Recording a call while it is watched: what its program read and wrote, and whether anything happened that a replay would leave out."""

from __future__ import annotations

import threading
import warnings
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from surestep.loop import boundaries
from surestep.observe import events, frames
from surestep.observe.events import Event
from surestep.replay.scope import BREAKS, INSTEAD
from surestep.replay.values import NotReplayable
from surestep.tensor import generator as generators
from surestep.tensor import update, xla_tensor
from surestep.tensor.generator import Generator
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.nested import operands
from surestep.trace.operands import LIFTED_INT, HostScalar
from surestep.trace.recorder import Recorder
from surestep.trace.records import Call, Leaf, Read, Record, Seed, needs
from surestep.trace.storage import Storage
from surestep.trace.trie import Place

Where = tuple[str | None, int]  # a file, and a line in it

_LOOKS = {"__get__", "detach", "requires_grad_", "tensor", "as_tensor"}  # of a CPU tensor that is sent to the device, say
# What tells a tensor's values.
_READS = {
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "__array__",
    "equal",
    "allclose",
    "is_nonzero",
}
_READS |= {"__contains__", "__format__", "__repr__"}


class Draws(NamedTuple):
    """Random numbers that a call drew from one generator's stream."""

    generator: Generator
    position: int  # of the seed among the trace's ints; the offset follows
    count: int  # how far the stream goes on


class Reads(NamedTuple):
    """Views that are read of a leaf: where their offsets stand among the ints, and whether all offsets do."""

    positions: list[int]
    lifted: bool


class Taken(NamedTuple):
    """A call's trace, before its program is run."""

    place: Place
    leaves: list[Any]
    owners: list[Storage | None]
    floats: list[float]
    ints: list[int]
    outputs: dict[int, Storage]
    draws: list[Draws]
    reads: dict[int, Reads]  # of leaves that are used in no other way
    updates: list[update.Noted]
    roots: list[Any]
    closures: list[tuple[Any, tuple, bool]]  # that were added, their arguments, and whether they run on another thread
    uploads: list[tuple[torch.Tensor, Any, Where]]  # from the host: what, the array, and where
    collectives: list[Any]  # what the processes agree on before the program is run


class Watch(TorchFunctionMode):
    """Sees each function of PyTorch's that a call calls, on CPU tensors too, and notes the first thing that a replay would leave out."""

    def __init__(self, recorders: list[Recorder], recorder: Recorder):
        super().__init__()
        self.recorder = recorder
        self.others = [other for other in recorders if other is not recorder]
        self.problem: NotReplayable | None = None
        self.uploads: list[tuple[torch.Tensor, Any, Where]] = []
        self.mixed: Where = (None, 0)  # where an operation took a number from a CPU tensor
        self.updates: list[update.Noted] = []
        self.roots: list[Any] = []
        self.closures: list[tuple[Any, tuple, bool]] = []

    def __enter__(self) -> Watch:
        self.serial = self.recorder.serial
        self.before = [other.count for other in self.others]
        self.thread = threading.get_ident()
        self.recorder.watch, self.recorder.limit = self._before_an_operation, 0
        self.stop = events.listen(self._heard)
        update.watched, xla_tensor.watched_roots, boundaries.watched_closures = self.updates, self.roots, self.closures
        self.show, self.shown = warnings.showwarning, self._show_warning
        warnings.showwarning = self.shown
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        if warnings.showwarning is self.shown:  # else somebody has put another there, and takes it away
            warnings.showwarning = self.show
        del self.show, self.shown
        self.stop()
        del self.stop  # which refers to this, and so would keep the graphs that backward went through
        self.recorder.watch = None
        update.watched = xla_tensor.watched_roots = boundaries.watched_closures = None

    def _before_an_operation(self) -> None:
        if threading.get_ident() != self.thread:
            self.note("another thread uses the device meanwhile")

    def _heard(self, event: Event) -> None:
        if event.name == "transfer_in":
            self.uploads.append((event.data["source"], event.data["array"], _where()))
        elif event.name == "transfer_out":
            self.note("a value is read on the host. Read it after the step, or hand it to add_step_closure", event.line)
        elif event.name == "fallback":
            operation = event.data.get("operation", "an operation")
            self.note(f"{operation} runs on the host. Write it with operations that the device has (docs/operators.md)", event.line)
        elif event.name == "boundary":
            cause = event.data["cause"]
            self.note(f"{BREAKS.get(cause, cause.value)}. {INSTEAD.get(cause, 'Leave it to the end of the step.')}".rstrip("."), event.line)

    def note(self, reason: str, line: frames.Line | None = None) -> None:
        """The first problem is the one to be told."""
        if self.problem is None:
            self.problem = NotReplayable(reason, *_where(line))

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self.problem is None and name not in _LOOKS:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            if not any(isinstance(leaf, XlaTensor) for leaf in tensors):
                if tensors and (made or name in _READS):
                    self.note(f"{name} computes on the host, where its operands may be others at the next call. {_INSTEAD}")
            elif self.mixed[0] is None and any(type(leaf) is torch.Tensor and not leaf.ndim for leaf in tensors):
                self.mixed = _where()
        return result

    def _show_warning(self, message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        """PyTorch's C++ warns at the innermost frame, which is the one of ours that calls it: it belongs to the user's line."""
        here = frames.user_line() if filename == __file__ else None
        self.show(message, category, here.file if here else filename, here.line if here else lineno, file, line)

    def taken(self) -> Taken:
        """What was recorded. Raises ``NotReplayable`` where a replay would leave something out."""
        recorder = self.recorder
        if self.problem is not None:
            raise self.problem.alone()
        if recorder.serial != self.serial or any(other.count != count for other, count in zip(self.others, self.before, strict=True)):
            raise NotReplayable("there is a boundary inside, or another device is used. Leave the boundary to the step's end")
        records = recorder.place.records()
        for record in records:
            if isinstance(record, Call) and any(isinstance(part, HostScalar) for part in tree_leaves((record.arguments, record.keywords))):
                raise NotReplayable(
                    f"{record.operation} takes a number from a CPU tensor, which may be another at the next call. {_INSTEAD}", *self.mixed
                )
        return Taken(
            recorder.place,
            list(recorder.leaves),
            [owner() for owner in recorder.owners],
            list(recorder.floats),
            list(recorder.ints),
            recorder.pending(),
            _draws(recorder, records),
            _reads(records),
            self.updates,
            self.roots,
            self.closures,
            self.uploads,
            list(recorder.collectives),
        )


_INSTEAD = "Make the tensor on the device (device='xla'), or pass it as an argument"


def _where(line: frames.Line | None = None) -> Where:
    line = line or frames.user_line()
    return (line.file, line.line) if line else (None, 0)


def _draws(recorder: Recorder, records: list[Record]) -> list[Draws]:
    found, position = [], 0
    seeds = iter(recorder.seeds.items())
    for record in records:
        if isinstance(record, Seed):
            (number, seed), (_, first) = next(seeds)
            generator = generators.drawing(number)
            if generator is None or generator.initial_seed() != seed:
                raise NotReplayable("random numbers come from a CPU generator, or the seed is set inside. Seed before the step")
            found.append(Draws(generator, position, generator.get_offset() - first))
        position += needs(record)[2]
    return found


def _reads(records: list[Record]) -> dict[int, Reads]:
    """By the position of a leaf: where it is read, if nothing else is done with it."""
    found: dict[int, Reads] = {}
    leaves: dict[int, int] = {}  # by the index of their value
    index = position = 0
    for record in records:
        if isinstance(record, Leaf):
            found[len(leaves)] = Reads([], True)
            leaves[index] = len(leaves)
        elif isinstance(record, Read):
            leaf = leaves.get(record.value.index, -1)
            if record.offset is not LIFTED_INT and leaf in found:
                found[leaf] = Reads(found[leaf].positions, False)
            elif leaf in found:
                found[leaf].positions.append(position)
        else:
            for used in operands(record):
                found.pop(leaves.get(used, -1), None)
        index += record.results
        position += needs(record)[2]
    return found


def graph_nodes(roots: list[Any]) -> set[Any]:
    """All nodes of the graphs that backward ran through."""
    found: set[Any] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node is None or node in found:
            continue
        found.add(node)
        waiting.extend(following for following, _ in node.next_functions)
    return found
