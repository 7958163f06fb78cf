"""Whether the replicas' parameters still agree. Replicas that went apart train on, each by itself, and nothing else would tell.

After some of an optimizer's steps, the first ones and then ever more rarely, each process sends two sums over each of its parameters to all
others: a small program of its own, after the step's. Equal programs keep replicas equal to the bit; where a rank reads values that others
don't, its programs are others, and round otherwise. So a small difference is none.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from surestep import settings
from surestep.execute.world import replica
from surestep.loop.boundaries import at_next_boundary, in_step
from surestep.observe.events import Cause
from surestep.parallel.collectives import Members, all_gather
from surestep.tensor import devices
from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor

TOLERANCE = 1e-5  # of the sum of a parameter's absolute values

_steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()


class ReplicasDiffer(RuntimeError):
    """The replicas' parameters are no longer the same."""


def _due(steps: int) -> bool:
    return steps in (1, 2, 10, 100) or steps % 1000 == 0


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    stepped(optimizer)


def stepped(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer has stepped: its parameters are compared if it is time, at the end of the ``step()`` that is open."""
    steps = _steps[optimizer] = _steps.get(optimizer, 0) + 1
    if not _due(steps) or not settings.on("SURESTEP_CHECK_REPLICAS"):
        return
    if in_step():
        at_next_boundary(partial(compare, optimizer, steps))
    else:
        compare(optimizer, steps)


def compare(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Compares an optimizer's parameters between the replicas.

    Raises:
        ReplicasDiffer: One is not the same.
    """
    found = [
        (f"parameter {place} of group {number} ({str(p.dtype).removeprefix('torch.')}{list(p.shape)})", p)
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
        if type(p) is XlaTensor and not getattr(p, "_is_sharded", False)
    ]
    if not found:
        return
    with torch.no_grad():
        sums = torch.stack([_sums(p.detach().double().flatten()) for _, p in found])
        (everybody,) = all_gather([sums.unsqueeze(0)], 0, Members())
    for recorder in devices.started():
        recorder.cut(Cause.REPLICAS)
    first, *others = everybody.cpu()
    for rank, other in enumerate(others, 1):
        for (name, _), ours, theirs in zip(found, first, other, strict=True):
            if not torch.isclose(ours[0], theirs[0], rtol=0, atol=TOLERANCE * max(ours[1], theirs[1]).item(), equal_nan=True):
                raise ReplicasDiffer(_message(name, rank, steps))


def _sums(values: torch.Tensor) -> torch.Tensor:
    """With a weight for each element: the gradients of a softmax add up to zero, and a plain sum would not see them."""
    weights = torch.arange(len(values), dtype=torch.float64, device=values.device).sin()
    return torch.stack([(values * weights).sum(), values.abs().sum()])


def _message(name: str, rank: int, steps: int) -> str:
    return (
        f"the replicas go apart: after {steps} step(s) {name} differs between ranks 0 and {rank}. Mostly it is one of two: the gradients "
        f"are not reduced (write xm.optimizer_step(optimizer), or xm.reduce_gradients before optimizer.step(), or use "
        f"DistributedDataParallel), or the weights were not equal at first (torch.manual_seed with the same seed before the model is "
        f"made, or xm.broadcast_master_param(model)). Where it is meant, set SURESTEP_CHECK_REPLICAS=0"
    )


def _watch() -> None:
    if replica().size > 1:
        register_optimizer_step_post_hook(_after_step)


at_first_use(_watch)
