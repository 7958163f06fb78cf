"""Processes that meet without the device: each gives some bytes and gets those of all."""

from __future__ import annotations

import itertools
import time

from surestep.execute.devices import jax_devices
from surestep.execute.world import world
from surestep.observe import frames
from surestep.parallel import agreement
from surestep.parallel.agreement import Note
from surestep.parallel.connection import store

_numbers: dict[tuple[int, ...], itertools.count[int]] = {}


def exchange(what: str, payload: bytes, group: tuple[int, ...]) -> list[bytes]:
    """The payloads of all in the group, in the order of their ordinals. Waits for all of them; agreement is checked as for collectives."""
    rank = world().rank
    if rank not in group:
        raise ValueError(f"{what}: rank {rank} isn't among those that meet, {list(group)}")
    jax_devices()  # this process has come into the world
    number = next(_numbers.setdefault(group, itertools.count()))
    agreement.check([Note(group, what, str(frames.user_line()))])
    keys = [f"met/{'.'.join(map(str, group))}/{number}/{other}" for other in group]
    store().set(keys[group.index(rank)], payload)  # type: ignore[bad-argument-type] (the stub forgets that bytes are taken)
    pause = 0.0005
    while not store().check(keys):
        agreement.own().look_for_error()
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)
    found = [store().get(key) for key in keys]
    if store().add(f"{keys[0]}/read", 1) == len(group):
        for key in (*keys, f"{keys[0]}/read"):
            store().delete_key(key)
    return found
