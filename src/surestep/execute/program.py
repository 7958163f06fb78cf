"""Programs: lowered once, compiled once, called with arrays. Everything XLA takes and gives passes here."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from surestep.execute import spmd
from surestep.execute.gathers import gathered
from surestep.execute.world import AXIS, replica, replicated
from surestep.observe import events
from surestep.observe.frames import Line

built = 0  # programs, since this process began


class Input(NamedTuple):
    """The figures of an array that a program takes or gives."""

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any = None  # under SPMD: how it lies over the devices; None: as XLA likes


class Program:
    """A compiled trace. ``donated`` are the positions of the leaves whose memory the outputs reuse."""

    __slots__ = ("donated", "executable", "gathered", "name", "numbers", "outputs", "sent", "smallest", "uses", "where")

    def __init__(self, name: str, executable: Any, outputs: Sequence[tuple[int, Input]], donated: frozenset[int], where: Any):
        self.name = name
        self.executable = executable
        self.outputs = tuple(index for index, _ in outputs)
        # by which a run is waited for
        self.smallest = min(range(len(outputs)), key=lambda position: math.prod(outputs[position][1].shape), default=0)
        self.donated = donated
        self.gathered: list[Any] = []  # of `build`'s watched: what it gathers whole on each device
        self.uses = 0
        self.where = where  # the JAX device, or the sharding over several
        self.numbers = b""
        self.sent: tuple[Any, Any] = (None, None)

    def with_numbers(self, floats: Sequence[float], ints: Sequence[int]) -> tuple[Any, Any]:
        """The numbers on the device: those of the call before, where they are the same to the bit, which costs less than to send them."""
        numbers = array("d", floats).tobytes() + array("q", ints).tobytes()
        if self.sent[0] is None or numbers != self.numbers:
            sent = np.array(floats, np.float64), np.array(ints, np.int64)
            self.numbers, self.sent = numbers, (numbers_to_device(sent[0], self.where), numbers_to_device(sent[1], self.where))
        return self.sent

    def __call__(self, leaves: Sequence[Any], floats: Any, ints: Any) -> Sequence[Any]:
        """The outputs' arrays, at once: the computation may still be running."""
        with jax.enable_x64(True):
            return self.executable(floats, ints, *leaves)


class LocalProgram(Program):
    """Of one process among several, without them: what other programs have left may be labelled as all processes' array."""

    def __call__(self, leaves: Sequence[Any], floats: Any, ints: Any) -> Sequence[Any]:
        """As ``Program``."""
        return super().__call__([leaf if leaf.is_fully_addressable else leaf.addressable_data(0) for leaf in leaves], floats, ints)


class ReplicaProgram(Program):
    """Of all processes at once, each with its own values: every array is labelled as one that they have in common.

    It takes one int more, 0, which XLA can't know, and gives one output more, a number of each collective.
    """

    def __init__(self, name: str, executable: Any, outputs: Sequence[tuple[int, Input]], donated: frozenset[int], where: Any):
        super().__init__(name, executable, outputs, donated, where)
        self.smallest = len(outputs)

    def with_numbers(self, floats: Sequence[float], ints: Sequence[int]) -> tuple[Any, Any]:
        """As ``Program``."""
        before = self.sent
        found = super().with_numbers(floats, [*ints, 0])
        if found is not before:
            self.sent = (_labelled(found[0]), _labelled(found[1]))
        return self.sent

    def __call__(self, leaves: Sequence[Any], floats: Any, ints: Any) -> Sequence[Any]:
        """As ``Program``; numbers that aren't ``with_numbers``' are this process's own, without the 0."""
        if not isinstance(ints, jax.Array) or ints.is_fully_addressable:
            floats = _labelled(floats)
            ints = _labelled(numbers_to_device(np.append(np.asarray(ints), 0), self.where))
        given = [_labelled(leaf) if leaf.is_fully_addressable else leaf for leaf in leaves]
        return super().__call__(given, floats, ints)


def _labelled(leaf: Any) -> Any:
    """Costs some microseconds, so what a program gives stays labelled until the next."""
    return jax.make_array_from_single_device_arrays(leaf.shape, replicated(), [leaf])


def numbers_to_device(numbers: np.ndarray, where: Any) -> jax.Array:
    """A private copy of a program's numbers on a JAX device, or several."""
    with jax.enable_x64(True):
        return jax.device_put(numbers.copy(), where)


def build(
    name: str,
    function: Callable[..., Sequence[Any]],
    leaves: Sequence[Input],
    numbers: tuple[int, int],
    outputs: Sequence[tuple[int, Input]],
    donatable: Sequence[int],
    device: int,
    line: Line | None,
    options: dict[str, Any] | None = None,
    together: bool = False,
    over_all: bool = False,
    watched: Mapping[int, Any] | None = None,
) -> Program:
    """Compiles ``function(floats, ints, *leaves)`` for one device; or, ``together``, for one device of each process; or ``over_all``.

    ``numbers`` is how many floats and ints it takes; ``outputs`` are (SSA index, figures); of ``donatable`` leaves those are donated that
    have an output of the same figures to give their memory to. ``options`` are XLA's own, for this program. ``watched`` says something of
    leaves that are better not gathered: what it says of those that are all the same is kept with the program.
    """
    global built
    donated = _matching(leaves, [figures for _, figures in outputs], donatable)
    where = spmd.target(device, over_all)
    sharding = replicated() if together else where if over_all else jax.sharding.SingleDeviceSharding(where)
    floats, ints = numbers[0], numbers[1] + together
    split: dict[str, Any] = {"out_shardings": [figures.sharding for _, figures in outputs]} if over_all else {}
    with jax.enable_x64(True), _Shown(name, line):
        arguments = [
            jax.ShapeDtypeStruct(figures.shape, figures.dtype, sharding=figures.sharding or sharding)
            for figures in (Input((floats,), np.dtype(np.float64)), Input((ints,), np.dtype(np.int64)), *leaves)
        ]
        start = time.perf_counter()
        if together:
            everywhere = jax.sharding.PartitionSpec()
            mesh = replicated().mesh
            function = jax.shard_map(function, mesh=mesh, in_specs=everywhere, out_specs=everywhere, axis_names={AXIS}, check_vma=False)
        function.__name__ = "surestep"  # the same for all: it is a part of the key under which JAX keeps programs between runs
        donations = tuple(leaf + 2 for leaf in sorted(donated))
        lowered = jax.jit(function, donate_argnums=donations, keep_unused=True, **split).lower(*arguments)
        middle = time.perf_counter()
        executable = lowered.compile(compiler_options=options or None)
        end = time.perf_counter()
    built += 1
    events.emit(
        "compile", line, program=name, lower_seconds=middle - start, compile_seconds=end - middle, outputs=len(outputs), leaves=len(leaves)
    )
    kind = ReplicaProgram if together else Program if replica().size == 1 else LocalProgram
    program = kind(name, executable, outputs, frozenset(donated), where)
    if watched:
        sizes = {leaf + 2: math.prod(leaves[leaf].shape) for leaf in watched}
        program.gathered = [watched[number - 2] for number in sorted(gathered(executable.as_text() or "", sizes))]
    return program


def _matching(leaves: Sequence[Input], outputs: Sequence[Input], donatable: Sequence[int]) -> set[int]:
    """XLA can only reuse memory of the same size; JAX warns about a donation that can't be used."""
    free: dict[Input, int] = {}
    for output in outputs:
        free[output] = free.get(output, 0) + 1
    chosen = set()
    for leaf in donatable:
        figures = leaves[leaf]
        if free.get(figures, 0) > 0:
            free[figures] -= 1
            chosen.add(leaf)
    return chosen


class _Shown:
    """Says on a terminal what is being compiled when that takes more than two seconds; silent elsewhere."""

    DELAY = 2.0  # seconds

    def __init__(self, name: str, line: Line | None):
        self.what = f"{name} ({line})" if line else name
        self.timer: threading.Timer | None = None
        self.shown = False

    def __enter__(self) -> None:
        self.start = time.perf_counter()
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self.timer = threading.Timer(self.DELAY, self._show)
            self.timer.daemon = True
            self.timer.start()

    def _show(self) -> None:
        self.shown = True
        print(f"surestep: compiling {self.what} ...", file=sys.stderr, flush=True)  # noqa: T201 (to a terminal only)

    def __exit__(self, *_: object) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.shown:
            seconds = time.perf_counter() - self.start
            print(f"surestep: compiled {self.what} in {seconds:.1f} s", file=sys.stderr, flush=True)  # noqa: T201 (to a terminal only)
