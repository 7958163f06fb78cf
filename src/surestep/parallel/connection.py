"""How the processes find each other, before JAX starts in any of them: through the store that ``torchrun``, or ``launch``, has opened at
MASTER_ADDR and MASTER_PORT. There the first one says where its JAX coordination service listens.
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import sys
from datetime import timedelta

import torch.distributed as dist

from surestep.execute.world import is_spmd, world
from surestep.observe import events
from surestep.parallel import addresses, runs
from surestep.trace.recorder import Recorder

_PATIENCE = timedelta(minutes=10)  # for all processes to come as far as their first use of the device


@functools.cache
def store() -> dist.Store:
    """What all processes of this run can write to and read from. It outlives each of them where a launcher keeps it."""
    found, _, _ = next(dist.rendezvous("env://", timeout=_PATIENCE))
    ours = dist.PrefixStore("surestep", found)
    return dist.PrefixStore(runs.named(ours, world(), _PATIENCE), ours)


def connect() -> None:
    """Makes this process one of the world that the environment names, if it names one."""
    place = world()
    if place.size == 1 or _connected:
        return
    import jax

    # It would catch SIGTERM, by which a launcher ends the others when one has failed.
    jax.config.update("jax_enable_preemption_service", False)
    addresses.tell_gloo(store(), place)
    if place.rank == 0:
        store().set("coordinator", f"{os.environ['MASTER_ADDR']}:{_free_port()}")
    jax.distributed.initialize(
        store().get("coordinator").decode(),
        place.size,
        place.rank,
        local_device_ids=None if is_spmd() else [place.local_rank],
        initialization_timeout=int(_PATIENCE.total_seconds()),
    )
    _connected.append(True)
    events.emit("connected", None, rank=place.rank, size=place.size)
    from surestep.parallel import agreement

    agreement.begin(store(), place)
    Recorder.announce = agreement.announce
    atexit.register(_at_exit)


_connected: list[bool] = []


def leave(failure: str | None = None) -> None:
    """The end of this process's part. Does what others may wait for, and waits until all have ended; tells of a failure at once.

    Raises:
        Disagreement: The others go on to do together what this process doesn't do any more.
    """
    if _connected:
        from surestep.parallel import agreement, collectives

        if failure is None:
            collectives.finish()
        _connected.clear()
        agreement.end(failure)


def _at_exit() -> None:
    """After an uncaught exception JAX's own exit would wait for the others, which wait for this process."""
    if not _connected:
        return
    raised = getattr(sys, "last_value", None)
    try:
        leave(None if raised is None else f"{type(raised).__name__}: {raised}")
    except RuntimeError as error:
        raised = error
        print(f"surestep: {error}", file=sys.stderr)  # noqa: T201 (the last word of a process that fails)
    if raised is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]
