"""By which address the processes of other hosts reach this one. Gloo would take what this host's name stands for: 127.0.0.1, often."""

from __future__ import annotations

import functools
import os
import socket

import torch.distributed as dist

from surestep.execute.world import World

_ELSEWHERE = "address"  # of a process on another host than the first


def tell_gloo(store: dist.Store, place: World) -> None:
    """Gives Gloo, which runs the collectives on the CPU, the right address. Called before JAX starts."""
    if place.size == place.local_size:
        return  # one host: any name of it will do
    from jaxlib import _jax  # private: JAX has no option for it, and passes nothing but the client

    original = _jax.make_gloo_tcp_collectives
    if not isinstance(original, functools.partial):
        _jax.make_gloo_tcp_collectives = functools.partial(original, hostname=_own(store, place))


def _own(store: dist.Store, place: World) -> str:
    """The one that this host uses towards another one: the first, at MASTER_ADDR; or for the first one, any other."""
    if place.rank == place.local_rank:
        return _towards(store.get(_ELSEWHERE).decode())
    found = _towards(os.environ["MASTER_ADDR"])
    store.set(_ELSEWHERE, found)
    return found


def _towards(host: str) -> str:
    (family, kind, _, _, target), *_ = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    with socket.socket(family, kind) as found:
        found.connect(target)  # sends nothing
        return found.getsockname()[0]
