"""The optimizer's step, as scripts for several replicas write it: reduce the gradients, step, and make a boundary if asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from surestep.loop.boundaries import in_step, sync
from surestep.parallel.collectives import Members, all_reduce

_NONE: Mapping[str, Any] = MappingProxyType({})


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of all parameters of an optimizer that have one."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: list[list[int]] | None = None, pin_layout: bool = True) -> None:
    """Replaces each gradient by its mean over all replicas, of its group if there are groups. With one replica it is that already.

    Raises:
        TypeError: It is no optimizer.
        RuntimeError: A parameter is sharded. Its gradient is a part of the mean already, and that of another part on each replica.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"an optimizer is expected, with its param_groups, and this is a {type(optimizer).__name__}")
    if any(getattr(p, "_is_sharded", False) for group in optimizer.param_groups for p in group["params"]):
        raise RuntimeError(
            "the optimizer's parameters are sharded, and their gradients were reduced in the backward pass: write "
            "optimizer.step() in place of xm.optimizer_step(optimizer), and leave xm.reduce_gradients out"
        )
    members = Members(groups)
    if members.size > 1:
        found = gradients(optimizer)
        all_reduce("sum", found, members, 1 / members.size, into=found)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] = _NONE,
    groups: list[list[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces the gradients over all replicas, steps, and makes a boundary, unless a ``step()`` is open: the block's end is one.

    Args:
        optimizer: Whose ``step()`` is called.
        barrier: Accepted as torch_xla has it. Without, torch_xla leaves the boundary to a loader's next batch; here both are one program.
        optimizer_args: Named arguments for ``optimizer.step()``.
        groups: Replica groups, as lists of ordinals; all replicas in one if None.
        pin_layout: Accepted as torch_xla has it; layouts are XLA's business here.

    Returns:
        What ``optimizer.step()`` returned.
    """
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**optimizer_args)
    if not in_step():
        sync()
    return result
