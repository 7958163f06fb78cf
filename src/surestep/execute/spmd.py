"""SPMD: ``xla:0`` stands for all devices of all processes, and XLA's partitioner splits each program over them.

Off until ``world.settle_spmd``. Every array that a program takes or gives then lies over all devices: split, as somebody said
or XLA chose, or a copy on each. What comes from the host is on one device until a program takes it (``placed``), so that a large parameter
which is sharded as soon as it is there never has a copy on every device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surestep.execute.devices import jax_devices

if TYPE_CHECKING:
    import jax

# The devices' positions in the order of the first mesh, and its shape, each axis taken apart into primes. All shardings are said over that
# one fine grid: JAX wants one order of the devices in a program, and names what XLA has chosen by one mesh.
_grid: tuple[tuple[int, ...], tuple[int, ...]] | None = None


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
    import jax

    return jax.sharding.NamedSharding(_mesh(*(_grid or _plain())), jax.sharding.PartitionSpec())


def _plain() -> tuple[tuple[int, ...], tuple[int, ...]]:
    count = len(all_devices())
    return tuple(range(count)), _primes(count)


def _primes(number: int) -> tuple[int, ...]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return (factor, *_primes(number // factor))
    return ()


def _mesh(order: tuple[int, ...], sizes: tuple[int, ...]) -> jax.sharding.Mesh:
    import jax

    devices = np.array(all_devices(), object)[list(order)].reshape(sizes)
    return jax.sharding.Mesh(devices, tuple(f"axis{number}" for number in range(len(sizes))))


def sharding(ids: Sequence[int], shape: tuple[int, ...], split: Sequence[Sequence[int]]) -> jax.sharding.NamedSharding:
    """How an array lies over a mesh: for each of its dimensions the numbers of the axes that split it, outermost first.

    ``ValueError`` for a mesh that doesn't go together with the first one.
    """
    import jax

    global _grid
    order, factors = tuple(int(position) for position in ids), [_primes(size) for size in shape]
    sizes = tuple(factor for axis in factors for factor in axis)
    if _grid is None:
        if (order, sizes) != _plain():
            whole.cache_clear()
        _grid = order, sizes
    if order != _grid[0]:
        raise ValueError(
            f"a mesh over the devices {list(order)}: the first one has them in the order {list(_grid[0])}, and so must all others"
        )
    if sizes != _grid[1]:
        raise ValueError(f"a mesh of shape {shape} crosses the first one, whose axes are products of {list(_grid[1])} in this order")
    starts = [sum(map(len, factors[:axis])) for axis in range(len(shape))]
    fine = [[f"axis{starts[axis] + number}" for axis in axes for number in range(len(factors[axis]))] for axes in split]
    return jax.sharding.NamedSharding(_mesh(order, sizes), jax.sharding.PartitionSpec(*(tuple(axes) if axes else None for axes in fine)))


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


def target(index: int, over_all: bool) -> Any:
    """Where what a program takes besides tensors is put: on its device, or on all of them."""
    return whole() if over_all else jax_devices()[index]
