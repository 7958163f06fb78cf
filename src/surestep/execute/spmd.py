"""SPMD: ``xla:0`` stands for all devices of all processes, and XLA's partitioner splits each program over them.

Off until ``enable``. Every array that a program takes or gives then lies over all devices: split, as somebody said or XLA chose, or a copy on
each. What comes from the host is on one device until a program takes it (``placed``), so that a large parameter which is sharded as soon as it
is there never has a copy on every device.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surestep.execute.devices import jax_devices

if TYPE_CHECKING:
    import jax
    import torch

_asked = os.environ.get("XLA_USE_SPMD", "0") == "1"
_order: tuple[int, ...] | None = None  # of the devices' positions: JAX's programs have one, that of the first mesh


def enabled() -> bool:
    """Whether `xla:0` stands for all devices."""
    return _asked


def enable() -> None:
    """From now on `xla:0` stands for all devices."""
    global _asked
    _asked = True


@functools.cache
def all_devices() -> tuple[jax.Device, ...]:
    """The devices of all processes; a mesh's ids are positions here."""
    import jax

    return tuple(jax.devices(jax_devices()[0].platform))


@functools.cache
def positions() -> dict[jax.Device, int]:
    """Where each device stands in ``all_devices``."""
    return {device: position for position, device in enumerate(all_devices())}


@functools.cache
def whole() -> jax.sharding.NamedSharding:
    """A copy on each device."""
    ids = _order or tuple(range(len(all_devices())))
    return sharding(ids, (len(ids),), ("all",), ())


def sharding(
    ids: Sequence[int], shape: tuple[int, ...], names: tuple[str, ...], spec: Sequence[str | tuple[str, ...] | None]
) -> jax.sharding.NamedSharding:
    """How an array lies over a mesh: for each of its dimensions the axes that split it, outermost first.

    ``ValueError`` for a mesh whose devices stand in another order than those of the first one.
    """
    import jax

    global _order
    order = tuple(int(position) for position in ids)
    if _order is None and order != tuple(range(len(order))):
        whole.cache_clear()
    _order = _order or order
    if order != _order:
        raise ValueError(f"a mesh over the devices {list(order)}: the first one has them in the order {list(_order)}, and so must all others")
    devices = np.array(all_devices(), object)[list(order)].reshape(shape)
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, names), jax.sharding.PartitionSpec(*spec))


def placed(array: jax.Array, wanted: jax.sharding.Sharding | None) -> jax.Array:
    """The array over all devices: as is wanted; else as it lies already, or a copy on each."""
    lies = array.sharding
    if lies == wanted or (wanted is None and len(lies.device_set) == len(all_devices())):
        return array
    return spread(array, wanted or whole())


def spread(array: Any, wanted: jax.sharding.Sharding) -> jax.Array:
    """A copy of an array, of the device or of NumPy, that lies as is wanted."""
    import jax

    with jax.enable_x64(True):
        if wanted.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
            return jax.device_put(array, wanted, may_alias=False)
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, wanted, lambda index: values[index])


def target(index: int) -> Any:
    """Where what a program takes besides tensors is put."""
    return whole() if enabled() else jax_devices()[index]


def assembled(shape: tuple[int, ...], wanted: jax.sharding.Sharding, parts: dict[jax.Device, torch.Tensor]) -> jax.Array:
    """The array of which each of this process's devices is given its part."""
    import jax

    from surestep.execute.transfer import host_array

    with jax.enable_x64(True):
        there = [jax.device_put(np.array(host_array(part), copy=True, order="C"), device) for device, part in parts.items()]
        return jax.make_array_from_single_device_arrays(shape, wanted, there)
