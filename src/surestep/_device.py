"""The devices of this process, and their seed, as a script asks for them."""

from __future__ import annotations

import torch

from surestep.execute.devices import device_kind
from surestep.tensor import generator


def device(index: int | None = None) -> torch.device:
    """The current xla device; with an index, that one, which becomes the current one.

    Raises:
        IndexError: This process has no such device.
    """
    from surestep.tensor import devices

    if index is not None:
        if not 0 <= index < device_count():
            raise IndexError(f"invalid device ordinal: xla:{index}. This process has {device_count()} xla device(s)")
        devices.set_current(index)
    return torch.device("xla", devices.current())


def devices() -> list[torch.device]:
    """All xla devices of this process. Starts JAX."""
    return [torch.device("xla", index) for index in range(device_count())]


def real_devices() -> list[str]:
    """What the xla devices of this process are: ``['CPU:0']``, ``['CUDA:0', 'CUDA:1']``. Starts JAX."""
    return [f"{device_kind()}:{index}" for index in range(device_count())]


def device_count() -> int:
    """How many xla devices this process has. Starts JAX."""
    from surestep.tensor import devices

    return devices.device_count()


def manual_seed(seed: int, device: torch.device | str | None = None) -> None:
    """Seeds the random numbers of one xla device, or of all of them: the same seed gives the same numbers, wherever boundaries fall."""
    from surestep.tensor.devices import index_of

    if device is None:
        generator.seed_all(seed)
    else:
        generator.default(index_of(device)).manual_seed(seed)
