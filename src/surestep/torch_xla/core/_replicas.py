"""Ordinals and collectives, with torch_xla's signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import torch

from surestep.execute.world import replica
from surestep.loop import replicas
from surestep.loop.checkpoint import to_cpu
from surestep.parallel import collectives
from surestep.parallel.collectives import Members, Message
from surestep.torch_xla.core import _gradients

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"

Groups = list[list[int]] | None
Tensors = torch.Tensor | list[torch.Tensor]


def xrt_world_size(defval: int = 1) -> int:
    """How many replicas there are."""
    return replica().size


def get_ordinal(defval: int = 0) -> int:
    """Which of all replicas this is."""
    return replica().rank


def get_local_ordinal(defval: int = 0) -> int:
    """Which of this host's replicas this is."""
    return replica().local_rank


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is replica 0 (of this host, or of all)."""
    return (get_local_ordinal() if local else get_ordinal()) == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints, on the master ordinal."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def all_reduce(reduce_type: str, inputs: Tensors, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True) -> Tensors:
    """The reduction over all replicas, times ``scale``: a new tensor for a tensor; a list is changed in place and returned."""
    if isinstance(inputs, torch.Tensor):
        return _gradients.all_reduce(reduce_type, inputs, scale, groups)
    collectives.all_reduce(reduce_type, inputs, Members(groups), scale, into=inputs)
    return inputs


def all_gather(value: Tensors, dim: int = 0, groups: Groups = None, output: Tensors | None = None, pin_layout: bool = True) -> Tensors:
    """The values of all replicas, one after the other along ``dim``."""
    given = [value] if isinstance(value, torch.Tensor) else value
    return _given(value, collectives.all_gather(given, dim, Members(groups)), output)


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
    members = Members(groups)
    _parts("reduce_scatter", "shard_count", shard_count, members)
    given = [input] if isinstance(input, torch.Tensor) else input
    return _given(input, collectives.reduce_scatter(reduce_type, given, scatter_dim, members, scale), output)


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
    members = Members(groups)
    _parts("all_to_all", "split_count", split_count, members)
    return collectives.all_to_all(value, split_dimension, concat_dimension, members)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The value of the replica that sends to this one; zeros where none does."""
    return collectives.collective_permute(value, pairs)


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Sends to the other of two processes, which must ``recv``; returns the value."""
    _message("send", value.detach().clone(), replica().rank)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receives from the other of two processes, which must ``send``: into ``output``, which is returned."""
    _message("recv", output, 1 - replica().rank)
    return output


def _message(what: str, tensor: torch.Tensor, source: int) -> None:
    if replica().size != 2:
        raise NotImplementedError(
            f"xm.{what} among {replica().size} process(es): a channel's number doesn't tell who is at its other end. Write "
            f"torch.distributed.send(tensor, dst=...) and recv(tensor, src=...), or xm.collective_permute, which all processes call"
        )
    collectives.post(Message(source, 1 - source, tensor))
    collectives.deliver()


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor], scale: float, groups: Groups, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """``all_reduce`` of a list by ``sum``, in place. Small ones always travel together."""
    collectives.all_reduce("sum", gradients, Members(groups), scale, into=gradients)


class CoalescingBuckets:
    """Calls ``func(inputs, outputs)`` on parts of a list of at most ``bucket_cap_mb`` each; a single tensor that is larger is alone."""

    def __init__(
        self,
        func: Callable[[Any, Any], Any],
        input_list: list[torch.Tensor],
        output_list: list[torch.Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ):
        if output_list is not None and len(output_list) != len(input_list):
            raise ValueError(f"{len(output_list)} outputs for {len(input_list)} inputs")
        self._func = func
        self._inputs = input_list
        self._outputs = output_list
        self._limit = bucket_cap_mb << 20

    def __call__(self) -> list[torch.Tensor]:
        """The results, in the order of the inputs."""
        results: list[torch.Tensor] = []
        start = size = 0
        for end, tensor in enumerate([*self._inputs, None]):
            more = 0 if tensor is None else tensor.numel() * tensor.element_size()
            if end > start and (tensor is None or size + more > self._limit):
                outputs = None if self._outputs is None else self._outputs[start:end]
                results.extend(self._func(self._inputs[start:end], outputs))
                start, size = end, 0
            size += more
        return results


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True) -> None:
    """Gives all replicas the root's values, in place."""
    collectives.broadcast(tensors, root_ordinal, Members(groups))


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all replicas the master's parameters and buffers; makes a boundary."""
    replicas.broadcast_master_param(model)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits for all replicas; returns their payloads. Makes a boundary."""
    return xla_rendezvous(payload, list(replicas) or None, tag)


def xla_rendezvous(payload: bytes = b"", ordinals: list[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits for all replicas; returns their payloads. Makes a boundary."""
    return replicas.rendezvous(tag or "xla_rendezvous", payload, ordinals)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """``reduce_fn`` of the list of all replicas' data, moved to the CPU."""
    return replicas.mesh_reduce(tag, data, reduce_fn)


def do_on_ordinals(target: Callable[..., Any], data: tuple = (), ordinals: Sequence[int] = (0,)) -> Any:
    """``target(*data)``, with ``data`` moved to the CPU, on the given replicas, while the others wait; None on those."""
    on_cpu = to_cpu(data)
    result = target(*on_cpu) if get_ordinal() in ordinals else None
    rendezvous("do_on_ordinals")
    return result


def _given(value: Tensors, results: list[torch.Tensor], output: Tensors | None) -> Tensors:
    if output is None:
        return results[0] if isinstance(value, torch.Tensor) else results
    if isinstance(value, torch.Tensor) != isinstance(output, torch.Tensor):
        raise TypeError(f"output must be like the input: a tensor for a tensor, a list for a list; it is a {type(output).__name__}")
    targets: list[Any] = [output] if isinstance(output, torch.Tensor) else output
    with torch.no_grad():
        for target, source in zip(targets, results, strict=True):
            target.copy_(source)
    return output


def _parts(function: str, argument: str, count: int, members: Members) -> None:
    if count != members.size:
        raise ValueError(f"{function}: {argument}={count} parts for {members.size} replica(s): it must be their number")
