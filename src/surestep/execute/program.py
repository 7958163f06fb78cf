"""Programs: lowered once, compiled once, called with arrays. Everything XLA takes and gives passes here."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from surestep.execute.devices import jax_devices
from surestep.observe import events
from surestep.observe.frames import Line


class Input(NamedTuple):
    """The figures of an array that a program takes or gives."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Program:
    """A compiled trace. ``donated`` are the positions of the leaves whose memory the outputs reuse."""

    __slots__ = ("device", "donated", "executable", "name", "numbers", "outputs", "sent", "smallest", "uses")

    def __init__(self, name: str, executable: Any, outputs: Sequence[tuple[int, Input]], donated: frozenset[int], device: int):
        self.name = name
        self.executable = executable
        self.outputs = tuple(index for index, _ in outputs)
        self.smallest = min(range(len(outputs)), key=lambda position: math.prod(outputs[position][1].shape))  # by which a run is waited for
        self.donated = donated
        self.uses = 0
        self.device = device
        self.numbers = b""
        self.sent: tuple[Any, Any] = (None, None)

    def with_numbers(self, floats: np.ndarray, ints: np.ndarray) -> tuple[Any, Any]:
        """The numbers on the device: those of the call before, where they are the same to the bit, which costs less than to send them."""
        numbers = floats.tobytes() + ints.tobytes()
        if self.sent[0] is None or numbers != self.numbers:
            self.numbers, self.sent = numbers, (numbers_to_device(floats, self.device), numbers_to_device(ints, self.device))
        return self.sent

    def __call__(self, leaves: Sequence[Any], floats: Any, ints: Any) -> Sequence[Any]:
        """The outputs' arrays, at once: the computation may still be running."""
        with jax.enable_x64(True):
            return self.executable(floats, ints, *leaves)


def numbers_to_device(numbers: np.ndarray, index: int) -> jax.Array:
    """A private copy of a program's numbers on device ``index``."""
    with jax.enable_x64(True):
        return jax.device_put(numbers.copy(), jax_devices()[index])


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
) -> Program:
    """Compiles ``function(floats, ints, *leaves)`` for one device.

    ``numbers`` is how many floats and ints it takes; ``outputs`` are (SSA index, figures); of ``donatable`` leaves those are donated that
    have an output of the same shape and dtype to give their memory to. ``options`` are XLA's own, for this program.
    """
    donated = _matching(leaves, [figures for _, figures in outputs], donatable)
    sharding = jax.sharding.SingleDeviceSharding(jax_devices()[device])
    floats, ints = numbers
    with jax.enable_x64(True), _Shown(name, line):
        arguments = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for shape, dtype in (((floats,), np.dtype(np.float64)), ((ints,), np.dtype(np.int64)), *leaves)
        ]
        start = time.perf_counter()
        function.__name__ = "surestep"  # the same for all: it is a part of the key under which JAX keeps programs between runs
        lowered = jax.jit(function, donate_argnums=tuple(leaf + 2 for leaf in sorted(donated)), keep_unused=True).lower(*arguments)
        middle = time.perf_counter()
        executable = lowered.compile(compiler_options=options or None)
        end = time.perf_counter()
    events.emit(
        "compile", line, program=name, lower_seconds=middle - start, compile_seconds=end - middle, outputs=len(outputs), leaves=len(leaves)
    )
    return Program(name, executable, outputs, frozenset(donated), device)


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
