"""Random numbers. A generator is a seed and an offset, both on the host; a program gets them as an input.

Each random operation draws from a key made of the seed and its own offset, which counts the operations before it. So the same seed gives
the same numbers wherever boundaries fall, and the state can be read and set (checkpointing does) without cutting a trace.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import torch

_MASK = (1 << 64) - 1
_numbers = itertools.count()


class Generator:
    """A stream of random numbers for one xla device; accepted wherever PyTorch takes ``generator=``."""

    def __init__(self, device: Any = "xla"):
        self.device = torch.device(device)
        if self.device.type != "xla":
            raise RuntimeError(f"surestep.Generator is for xla devices, not {self.device}: use torch.Generator")
        self.number = next(_numbers)
        self._seed = secrets.randbits(63)
        self._offset = 0

    def manual_seed(self, seed: int) -> Generator:
        """Starts the stream of this seed (any 64-bit integer, as in PyTorch) from its beginning."""
        seed = int(seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise RuntimeError(f"Overflow when unpacking long: the seed {seed} needs more than 64 bits")
        self._seed, self._offset = seed & _MASK, 0
        return self

    def seed(self) -> int:
        """Starts a stream from a random seed; returns the seed."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """The seed of the stream, wherever in it the generator is."""
        return self._seed

    def get_state(self) -> torch.Tensor:
        """A CPU ``uint8`` tensor of 16 bytes: seed and offset."""
        return torch.tensor(list(self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        """Goes on from a state that ``get_state`` gave."""
        if state.dtype is not torch.uint8 or state.device.type != "cpu" or state.numel() != 16:
            raise RuntimeError("RNG state must be a torch.ByteTensor of 16 bytes on the CPU, as get_state() gives it")
        data = bytes(state.tolist())
        self._seed, self._offset = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
        return self

    def clone_state(self) -> Generator:
        """Another generator, at the same place of the same stream."""
        return Generator(self.device).set_state(self.get_state())

    def next(self) -> tuple[int, int, int]:
        """Who draws, with which seed, at which offset. ``advance`` follows once the draw is recorded."""
        return self.number, self._seed, self._offset

    def advance(self) -> None:
        """The draw that ``next`` told of has been recorded: the next one is another."""
        self._offset += 1


class _Once:
    """A draw seeded by a CPU generator: the same state of that generator gives the same numbers here."""

    def __init__(self, generator: torch.Generator):
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())

    def next(self) -> tuple[int, int, int]:
        return -1, self._seed, 0

    def advance(self) -> None:
        pass


_default: dict[int, Generator] = {}
_default_seed: list[int] = []


def default(index: int) -> Generator:
    """The device's own generator. One that wasn't seeded follows ``torch.manual_seed``'s last seed."""
    found = _default.get(index)
    if found is None:
        found = _default[index] = Generator(torch.device("xla", index)).manual_seed(
            _default_seed[0] if _default_seed else torch.initial_seed()
        )
    return found


def seed_all(seed: int) -> None:
    """Seeds every device's generator, those not used yet too."""
    _default_seed[:] = [seed]
    for generator in _default.values():
        generator.manual_seed(seed)


def of(recorder: Any, generator: Any) -> Any:
    """Whom a random operation on the recorder's device draws from, by its argument ``generator``: None means the device's own."""
    if generator is None:
        return default(recorder.device)
    if isinstance(generator, Generator):
        return generator
    if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        return _Once(generator)
    raise RuntimeError(f"Expected a generator for the xla device or the CPU but found {generator!r}")
