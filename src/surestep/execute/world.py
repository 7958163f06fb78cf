"""The processes that train together, one a device: which of them this is, and the mesh of all their devices.

The environment says it, in the variables of ``torchrun``, which ``launch`` sets for the processes that it starts. Without them there is one
process, and nothing here is asked for.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import jax

AXIS = "replica"  # of the mesh of all processes' devices


class World(NamedTuple):
    """This process among all of them."""

    rank: int
    size: int
    local_rank: int
    local_size: int


ALONE = World(0, 1, 0, 1)


def world() -> World:
    """Which process this is. Without RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT it is alone."""
    environ = os.environ
    size = environ.get("WORLD_SIZE", "1")
    if size == "1" or not all(name in environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")):
        return ALONE
    rank = int(environ["RANK"])
    return World(rank, int(size), int(environ.get("LOCAL_RANK", rank)), int(environ.get("LOCAL_WORLD_SIZE", size)))


_spmd: bool | None = None  # None: not settled, the environment counts


def is_spmd() -> bool:
    """Whether one program has all devices of all processes, rather than each process a program for its own."""
    return os.environ.get("XLA_USE_SPMD") == "1" if _spmd is None else _spmd


def settle_spmd(on: bool | None = None) -> None:
    """Whether one program has all devices from now on; None, as JAX starts: as the environment says."""
    global _spmd
    _spmd = is_spmd() if on is None else on


def replica() -> World:
    """This process among those that each hold a replica of what is trained: alone under SPMD, where there is one, spread over all."""
    return ALONE if is_spmd() else world()


@functools.cache
def replicated() -> jax.sharding.NamedSharding:
    """The label of every array in a program with collectives: replicated over all processes' devices, though each has its own values."""
    import jax
    import numpy as np

    from surestep.execute.devices import jax_devices

    mesh = jax.sharding.Mesh(np.array(jax.devices(jax_devices()[0].platform)), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
