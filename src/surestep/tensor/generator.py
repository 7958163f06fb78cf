"""Random numbers. A generator is a seed and an offset, both on the host; a program gets them as an input.

Each random operation draws from a key made of the seed and its own offset, which counts the operations before it. So the same seed gives
the same numbers wherever boundaries fall, and the state can be read and set (checkpointing does) without cutting a trace.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any
from weakref import WeakValueDictionary

import torch

from surestep import _compat

_MASK = (1 << 64) - 1
_numbers = itertools.count()


class Stream:
    """Where in the stream of which seed the next draw is."""

    def __init__(self, seed: int, offset: int = 0):
        self.number = next(_numbers)
        self.seed = seed
        self.offset = offset

    def next(self) -> tuple[int, int, int]:
        """Who draws, with which seed, at which offset. ``advance`` follows once the draw is recorded."""
        return self.number, self.seed, self.offset

    def advance(self) -> None:
        """The draw that ``next`` told of has been recorded: the next one is another."""
        self.offset += 1


class Generator(torch.Generator):
    """A stream of random numbers for one xla device: what ``torch.Generator`` is elsewhere, accepted wherever PyTorch takes ``generator=``.

    PyTorch's C++ wants a generator of its own kind, and has none for xla. So this is one of the CPU's, labelled as the device's, by whose
    identity the operations on the device find the stream. What is for the CPU refuses it in PyTorch's words.
    """

    _stream: Stream

    def __new__(cls, device: Any = "xla") -> Generator:  # noqa: D102 (the class says it)
        where = torch.device(device)
        if where.type != "xla":
            raise RuntimeError(f"surestep.Generator is for xla devices, not {where}: use torch.Generator({str(where)!r})")
        from surestep.tensor import devices

        made = super().__new__(cls, "cpu")  # type: ignore[bad-argument-count] (the stub knows __init__ only)
        _compat.label_generator(made, devices.current() if where.index is None else devices.index_of(where))
        made._stream = Stream(secrets.randbits(63))
        _generators[_compat.generator_identity(made)] = made
        return made

    def manual_seed(self, seed: int) -> Generator:
        """Starts the stream of this seed (any 64-bit integer, as in PyTorch) from its beginning."""
        seed = int(seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise RuntimeError(f"Overflow when unpacking long: the seed {seed} needs more than 64 bits")
        self._stream.seed, self._stream.offset = seed & _MASK, 0
        return self

    def seed(self) -> int:
        """Starts a stream from a random seed; returns the seed."""
        return self.manual_seed(secrets.randbits(63)).initial_seed()

    def initial_seed(self) -> int:
        """The seed of the stream, wherever in it the generator is."""
        return self._stream.seed

    def get_offset(self) -> int:
        """How many operations have drawn since the seed was set."""
        return self._stream.offset

    def set_offset(self, offset: int) -> Generator:
        """Goes on as if so many operations had drawn since the seed was set."""
        if not 0 <= offset <= _MASK:
            raise RuntimeError(f"a generator's offset is from 0 to 2 ** 64 - 1, not {offset}")
        self._stream.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        """A CPU ``uint8`` tensor of 16 bytes: seed and offset."""
        words = self._stream.seed, self._stream.offset
        return torch.tensor([byte for word in words for byte in word.to_bytes(8, "little")], dtype=torch.uint8, device="cpu")

    def set_state(self, _new_state: torch.Tensor) -> Generator:
        """Goes on from a state that ``get_state`` gave."""
        if _new_state.dtype is not torch.uint8 or _new_state.device.type != "cpu" or _new_state.numel() != 16:
            raise RuntimeError("RNG state must be a torch.ByteTensor of 16 bytes on the CPU, as get_state() of an xla generator gives it")
        data = bytes(_new_state.tolist())
        self._stream.seed, self._stream.offset = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
        return self

    def clone_state(self) -> Generator:
        """Another generator, at the same place of the same stream."""
        return Generator(self.device).set_state(self.get_state())

    def graphsafe_get_state(self) -> Generator:
        """Another generator on this one's own stream: where one draws, both go on."""
        return Generator(self.device).graphsafe_set_state(self)

    def graphsafe_set_state(self, _new_state: torch.Generator) -> Generator:
        """Draws from another xla generator's own stream from now on."""
        self._stream = _new_state._stream  # type: ignore[missing-attribute] (a CPU generator has none, and is refused by that)
        return self

    def __reduce__(self) -> Any:
        return Generator, (self.device,), self.get_state()

    def __setstate__(self, state: Any) -> None:
        self.set_state(state)


# By the identity of PyTorch's C++ object: an operation is handed another Python object for it.
_generators: WeakValueDictionary[int, Generator] = WeakValueDictionary()


class _Once:
    """A draw seeded by a CPU generator: the same state of that generator gives the same numbers here."""

    def __init__(self, generator: torch.Generator):
        self.seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())

    def next(self) -> tuple[int, int, int]:
        return -1, self.seed, 0

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


def of(recorder: Any, generator: torch.Generator | None) -> Any:
    """Whom a random operation on the recorder's device draws from, by its argument ``generator``: None means the device's own."""
    if generator is None:
        return default(recorder.device)._stream
    ours = _generators.get(_compat.generator_identity(generator))
    if ours is None:
        if generator.device.type != "cpu":
            raise RuntimeError(f"Expected an 'xla' or 'cpu' device type for generator but found '{generator.device.type}'")
        return _Once(generator)
    if ours.device.index != recorder.device:
        raise RuntimeError(f"Expected a generator for xla:{recorder.device} but found one for {ours.device}")
    return ours._stream


def states(index: int) -> dict[int, tuple[int, int]]:
    """Seed and offset of each stream that a living generator draws from, the device's own among them, by the stream's number."""
    default(index)
    streams = [found._stream for found in (*_default.values(), *_generators.values())]
    return {stream.number: (stream.seed, stream.offset) for stream in streams}


def drawing(number: int) -> Generator | None:
    """The living generator that draws from the stream with this number."""
    return next((found for found in (*_default.values(), *_generators.values()) if found._stream.number == number), None)
