"""Ordinals, and collectives over the one replica that there is: identities, with torch_xla's signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import torch

from surestep.loop.boundaries import sync
from surestep.loop.checkpoint import to_cpu

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"
_REDUCTIONS = (REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX)

Groups = list[list[int]] | None
Tensors = torch.Tensor | list[torch.Tensor]


def xrt_world_size(defval: int = 1) -> int:
    """How many replicas there are: one."""
    return 1


def get_ordinal(defval: int = 0) -> int:
    """Which of all replicas this is: 0."""
    return 0


def get_local_ordinal(defval: int = 0) -> int:
    """Which of this host's replicas this is: 0."""
    return 0


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is replica 0 (of this host, or of all)."""
    return True


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints, on the master ordinal."""
    print(*args, file=fd or sys.stdout, flush=flush)


def all_reduce(reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True) -> Tensors:
    """The reduction over all replicas, times ``scale``: a new tensor for a tensor; a list is changed in place and returned."""
    if isinstance(inputs, torch.Tensor):
        return reduced(reduce_type, inputs, scale, groups)
    _check(reduce_type, groups)
    if scale != 1.0:
        with torch.no_grad():
            for tensor in inputs:
                tensor.mul_(scale)
    return inputs


def reduced(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None) -> torch.Tensor:
    """The reduction over all replicas of one tensor, times ``scale``."""
    _check(reduce_type, groups)
    return value.clone() if scale == 1.0 else value * scale


def all_gather(value: Tensors, dim: int = 0, groups: Groups = None, output: Tensors | None = None, pin_layout: bool = True) -> Tensors:
    """The values of all replicas, one after the other along ``dim``."""
    _check(REDUCE_SUM, groups)
    return _given(value, output)


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """``all_gather`` of a list."""
    return all_gather(input_list, dim, groups, output, pin_layout)


def reduce_scatter(
    reduce_type: str,
    input: Tensors,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Tensors | None = None,
    pin_layout: bool = True,
) -> Tensors:
    """This replica's shard of the reduction over all replicas, times ``scale``."""
    _check(reduce_type, groups)
    _one_part("reduce_scatter", "shard_count", shard_count)
    scaled = [tensor * scale for tensor in ([input] if isinstance(input, torch.Tensor) else input)]
    return _given(scaled[0] if isinstance(input, torch.Tensor) else scaled, output)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Tensors:
    """``reduce_scatter`` of a list."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output, pin_layout)


def all_to_all(
    value: torch.Tensor, split_dimension: int, concat_dimension: int, split_count: int, groups: Groups = None, pin_layout: bool = True
) -> torch.Tensor:
    """Part ``i`` of each replica's value goes to replica ``i``."""
    _check(REDUCE_SUM, groups)
    _one_part("all_to_all", "split_count", split_count)
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The value of the replica that sends to this one; zeros where none does."""
    for source, target in pairs:
        if (source, target) != (0, 0):
            raise ValueError(f"collective_permute: pair ({source}, {target}) names a replica that isn't there: this is the only one, 0")
    return value.clone() if len(pairs) else torch.zeros_like(value)


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True) -> None:
    """Gives all replicas the root's values, in place."""
    _check(REDUCE_SUM, groups)
    if root_ordinal != 0:
        raise ValueError(f"collective_broadcast: root_ordinal={root_ordinal} isn't there: this is the only replica, 0")


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all replicas the master's parameters and buffers; makes a boundary."""
    sync()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits for all replicas; returns their payloads. Makes a boundary."""
    return xla_rendezvous(payload, list(replicas) or None, tag)


def xla_rendezvous(payload: bytes = b"", ordinals: list[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits for all replicas; returns their payloads. Makes a boundary."""
    if not isinstance(payload, bytes):
        raise TypeError(f"rendezvous: payload must be bytes, not {type(payload).__name__}")
    if ordinals and ordinals != [0]:
        raise ValueError(f"rendezvous: replicas {ordinals} aren't all there: this is the only one, 0")
    sync()
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """``reduce_fn`` of the list of all replicas' data, moved to the CPU."""
    return reduce_fn([to_cpu(data)])


def do_on_ordinals(target: Callable[..., Any], data: tuple = (), ordinals: Sequence[int] = (0,)) -> Any:
    """``target(*data)``, with ``data`` moved to the CPU, on the given replicas; None on the others."""
    return target(*to_cpu(data)) if 0 in ordinals else None


def _given(value: Tensors, output: Tensors | None) -> Tensors:
    if output is None:
        return value.clone() if isinstance(value, torch.Tensor) else [tensor.clone() for tensor in value]
    if isinstance(value, torch.Tensor) != isinstance(output, torch.Tensor):
        raise TypeError(f"output must be like the input: a tensor for a tensor, a list for a list; it is a {type(output).__name__}")
    pairs: list[Any] = [(output, value)] if isinstance(value, torch.Tensor) else list(zip(output, value, strict=True))
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)
    return output


def _check(reduce_type: str, groups: Groups) -> None:
    if reduce_type not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {reduce_type!r}: it is one of {', '.join(_REDUCTIONS)}")
    if groups and [list(group) for group in groups] != [[0]]:
        raise ValueError(f"groups={groups} name replicas that aren't there: this is the only one, so that groups is [[0]] or left out")


def _one_part(function: str, argument: str, count: int) -> None:
    if count != 1:
        raise ValueError(f"{function}: {argument}={count} parts for one replica: it must be xm.xrt_world_size(), which is 1")
