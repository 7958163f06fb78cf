"""``torch.distributed``'s backend "xla": its collectives are those of the trace, so that a step with DistributedDataParallel is one
program.

Nothing waits where it is called: what a collective gives is a value of the trace like any other, and there when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from surestep import _compat
from surestep.execute.devices import jax_devices
from surestep.execute.world import world
from surestep.parallel import batch_norm, collectives, connection
from surestep.parallel.collectives import Members, Message
from surestep.tensor.xla_tensor import XlaTensor

_KINDS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "mul",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "and",
    dist.ReduceOp.BOR: "or",
}

Tensors = list[torch.Tensor]


_Work: Any = dist.Work


class Done(_Work):
    """What is recorded is done, as far as the caller can tell."""

    def __init__(self, result: Any):
        super().__init__()
        self._future: torch.futures.Future = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Always: what fails is raised where it is recorded, or at the boundary."""
        return True

    def get_future(self) -> torch.futures.Future:
        """A future that has the result."""
        return self._future


class Posted(Done):
    """A message on its way; it is sent, or received, when it is waited for."""

    def __init__(self, result: Any, source: int, arrived: Callable[[], None]):
        super().__init__(result)
        self._source = source
        self._arrived = arrived

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Sends and receives all that was posted."""
        collectives.deliver()
        self._arrived()
        return True

    def _source_rank(self) -> int:
        return self._source


_Base: Any = dist.ProcessGroup  # its methods are C++'s, and overloaded there


class ProcessGroupXla(_Base):
    """A group of this world's processes, named by their ordinals."""

    def __init__(self, store: dist.Store, rank: int, size: int, ordinals: Sequence[int]):
        super().__init__(rank, size)
        self.ordinals = tuple(ordinals)
        self.members = Members(only=self.ordinals) if size > 1 else Members(only=(world().rank,))

    def getBackendName(self) -> str:
        """``xla``"""
        return "xla"

    def setGroupName(self, name: str) -> None:
        """PyTorch gives it; functional collectives find the group by it."""
        self._name = name

    def getGroupName(self) -> str:
        """Its name."""
        return self._name

    def _root(self, opts: Any) -> int:
        return self.ordinals[opts.rootRank]

    def _reduced(self, tensors: Tensors, op: Any, into: Tensors | None = None) -> Tensors:
        kind, scale = _reduction(op, self.size())
        return collectives.all_reduce(kind, tensors, self.members, scale, into)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """In place."""
        given = _on_device(tensors)
        self._reduced(given, dist.ReduceOp.SUM if opts is None else opts.reduceOp, given)
        return _back(tensors, given)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """In place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """In place on the root; the others' stay as they are."""
        results = self._reduced(_on_device(tensors), opts.reduceOp)
        if world().rank == self._root(opts):
            _fill(tensors, results)
        return Done(tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """In place."""
        given = _on_device(tensors)
        collectives.broadcast(given, self._root(opts) if opts is not None else self.ordinals[0], self.members)
        return _back(tensors, given)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """One tensor a process."""
        for slots, value in zip(outputs, inputs, strict=True):
            _fill(slots, self._all(value))
        return Done(outputs)

    def _all(self, value: torch.Tensor) -> Sequence[torch.Tensor]:
        (given,) = _on_device([value])
        return collectives.all_gather([given.unsqueeze(0)], 0, self.members)[0].unbind(0)

    def _allgather_base(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> dist.Work:
        """Into one tensor, one after the other."""
        _check_count("all_gather", "output", output, self.size() * value.numel())
        _fill([output], [torch.stack(tuple(self._all(value))).reshape(output.shape)])
        return Done(output)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Each into one tensor."""
        for output, value in zip(outputs, inputs, strict=True):
            self._allgather_base(output, value)
        return Done(outputs)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """Several tensors; ``outputs`` has a list of them a process."""
        return self.allgather(list(map(list, zip(*outputs, strict=True))), inputs)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """One tensor a process, on the root. All processes get them: the device has no cheaper way."""
        found = [self._all(value) for value in inputs]
        if world().rank == self._root(opts):
            for slots, values in zip(outputs, found, strict=True):
                _fill(slots, values)
        return Done(outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        """To each process its tensor of the root's list."""
        for position, output in enumerate(outputs):
            given = world().rank == self._root(opts)
            parts = inputs[position] if given else [torch.zeros_like(output)] * self.size()
            whole = torch.stack(_on_device(parts))
            _fill([output], [collectives.all_to_all(whole, 0, 0, self.members)[opts.rootRank]])
        return Done(outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        """To each process the reduction of its place in all lists; or of its part, where a list is one tensor of all parts."""
        for output, values in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, torch.cat([value.reshape(-1) for value in _on_device(values)]), opts)
        return Done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> dist.Work:
        """To each process its part of the reduction."""
        (given,) = _on_device([value])
        _check_count("reduce_scatter", "input", given, self.size() * output.numel())
        kind, scale = _reduction(dist.ReduceOp.SUM if opts is None else opts.reduceOp, self.size())
        (part,) = collectives.reduce_scatter(kind, [given.reshape(self.size(), *output.shape)], 0, self.members, scale)
        _fill([output], [part[0]])
        return Done(output)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Each as ``reduce_scatter_tensor``."""
        for output, value in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, value, opts)
        return Done(outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """Tensor ``i`` goes to process ``i``; they may be of different shapes."""
        _fill(outputs, collectives.exchange(_on_device(inputs), [output.shape for output in outputs], self.members))
        return Done(outputs)

    def alltoall_base(
        self, output: torch.Tensor, value: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        """Part ``i`` along the first dimension goes to process ``i``: so many rows as the splits say, else all of one size."""
        (given,) = _on_device([value])
        if not output_splits and not input_splits:
            _check_count("all_to_all_single", "output", output, given.numel())
            _fill([output], [collectives.all_to_all(given, 0, 0, self.members)])
            return Done(output)
        return self.alltoall(_parts(output, output_splits, self.size()), _parts(given, input_splits, self.size()), opts)

    # PyTorch 2.13's own functions call these names; its C++, and later versions, those above.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _start_coalescing(self, device: torch.device) -> None:
        """What is recorded is one program in any case."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return Done(None)

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> dist.Work:
        """To one other, which receives at the same place of its own sequence."""
        return self._posted(tensors, self.rank(), target)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> dist.Work:
        """From one other, in place."""
        return self._posted(tensors, source, self.rank())

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Can't be had: both ends are a part of their programs."""
        raise NotImplementedError("recv without a source: the process group 'xla' must know who sends. Write recv(tensor, src=...)")

    def _posted(self, tensors: Tensors, source: int, target: int) -> dist.Work:
        receives = target == self.rank()
        given = _on_device(tensors)
        if not receives:  # as they are now
            given = [tensor.clone() for tensor in given]
        for tensor in given:
            collectives.post(Message(self.ordinals[source], self.ordinals[target], tensor))
        return Posted(tensors, source, lambda: _back(tensors, given) if receives else None)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Waits until all have come here, and done what they were given."""
        from surestep.parallel.meeting import exchange
        from surestep.tensor import device_module

        device_module.wait()
        if self.size() > 1:
            exchange("barrier", b"", tuple(sorted(self.ordinals)))
        return Done(None)


def _reduction(op: Any, size: int) -> tuple[str, float]:
    kind = next((kind for known, kind in _KINDS.items() if op == known), None)
    if kind is None:
        raise NotImplementedError(f"the process group 'xla' has no {op}: it has SUM, AVG, PRODUCT, MIN, MAX, BAND and BOR")
    return kind, 1 / size if op == dist.ReduceOp.AVG else 1.0


def _check_count(name: str, what: str, tensor: torch.Tensor, count: int) -> None:
    if tensor.numel() != count:
        raise ValueError(f"{name}: the {what} is of shape {list(tensor.shape)}, {tensor.numel()} element(s), and must have {count}")


def _parts(value: torch.Tensor, splits: list[int], size: int) -> Tensors:
    """Views of the rows that go to each process, or come from it."""
    rows = value.shape[0]
    if not splits and rows % size == 0:
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"all_to_all_single: {rows} row(s) can't be split into {splits or 'equal parts'} for {size} processes")
    return list(value.split(splits))


def _on_device(tensors: Sequence[torch.Tensor]) -> Tensors:
    """What is on the CPU (torch's own collectives of Python objects) goes by way of the device."""
    return [tensor.detach() if isinstance(tensor, XlaTensor) else tensor.detach().to("xla") for tensor in tensors]


def _back(tensors: Tensors, given: Tensors) -> Done:
    for tensor, value in zip(tensors, given, strict=True):
        if not isinstance(tensor, XlaTensor):
            _fill([tensor], [value])
    return Done(tensors)


def _fill(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


def _create(options: Any, _backend_options: Any = None) -> ProcessGroupXla:
    ordinals = options.global_ranks_in_group or range(options.group_size)
    jax_devices()  # all processes come into the world now
    _compat.before_fully_shard(_refuse)
    return ProcessGroupXla(options.store, options.group_rank, options.group_size, ordinals)


def _refuse(module: torch.nn.Module) -> None:
    """FSDP2 shards by meshes of process groups, and PyTorch makes none for xla; without a mesh it would move the module to the CPU."""
    if any(isinstance(parameter, XlaTensor) for parameter in module.parameters()):
        raise NotImplementedError(
            "fully_shard can't shard a module on the xla device. torch_xla.distributed.fsdp.XlaFullyShardedDataParallel(module, "
            "auto_wrap_policy=...) does: it takes the module from the CPU or the device, and its parameters() are for the optimizer"
        )


def _rendezvous(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """``init_method="xla://"``, and its old name ``pjrt://``: rank and size are the world's."""
    place = world()
    if place.size == 1:
        yield dist.HashStore(), 0, 1
    else:
        yield dist.PrefixStore("torch.distributed", connection.store()), place.rank, place.size


def register() -> None:
    """Makes the backend "xla" and its ``init_method`` known."""
    if "xla" not in dist.Backend.backend_list:
        dist.Backend.register_backend("xla", _create, extended_api=True, devices="xla")
        for scheme in ("xla", "pjrt"):
            dist.register_rendezvous_handler(scheme, _rendezvous)
        batch_norm.install()
