"""What a training loop on several replicas says besides its collectives: meeting the others, and starting from the same weights."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from surestep.execute.world import replica
from surestep.loop.boundaries import sync
from surestep.loop.checkpoint import to_cpu
from surestep.parallel import meeting
from surestep.parallel.collectives import Members, broadcast
from surestep.tensor.xla_tensor import XlaTensor


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all replicas the master's parameters and buffers; makes a boundary.

    Raises:
        RuntimeError: The model is sharded: all would have the master's parts.
    """
    if any(getattr(parameter, "_is_sharded", False) for parameter in model.parameters()):
        raise RuntimeError(
            "broadcast_master_param of a sharded model: all processes would get the master's parts. Call it before the model is wrapped, "
            "or give all the same weights by torch.manual_seed"
        )
    tensors = [tensor.data for tensor in (*model.parameters(), *model.buffers()) if type(tensor) is XlaTensor]
    broadcast(tensors, 0, Members())
    sync()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] | None = None) -> list[bytes]:
    """Waits for all replicas, or those that are listed; returns their payloads. Makes a boundary."""
    if not isinstance(payload, bytes):
        raise TypeError(f"rendezvous: payload must be bytes, not {type(payload).__name__}")
    size = replica().size
    ordinals = tuple(sorted(replicas)) if replicas else tuple(range(size))
    if ordinals[0] < 0 or ordinals[-1] >= size:
        raise ValueError(f"rendezvous: replicas {list(ordinals)} aren't all there: there are {size}, from 0 on")
    sync()
    return meeting.exchange(f"rendezvous {tag!r}", payload, ordinals) if len(ordinals) > 1 else [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """``reduce_fn`` of the list of all replicas' data, moved to the CPU."""
    if replica().size == 1:
        return reduce_fn([to_cpu(data)])
    return reduce_fn([pickle.loads(other) for other in rendezvous(tag, pickle.dumps(to_cpu(data)))])
