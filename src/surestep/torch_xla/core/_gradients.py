"""Collectives that autograd goes through. As in torch_xla, a gradient is this replica's own part: that of its own loss, as if the others'
values were constants. What the replicas add up is left to ``reduce_gradients``.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep.execute.world import replica
from surestep.parallel import collectives
from surestep.parallel.collectives import Groups, Members


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, kind: str, scale: float, groups: Groups) -> torch.Tensor:
        (result,) = collectives.all_reduce(kind, [value], Members(groups), scale)
        ctx.kind, ctx.scale = kind, scale
        if kind != "sum":
            ctx.save_for_backward(value, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0] * ctx.scale if ctx.scale != 1.0 else gradients[0]
        if ctx.kind == "sum":
            return gradient, None, None, None
        value, result = ctx.saved_tensors
        if ctx.kind == "mul":
            # the product of the others' values: `scale` is in the result, and so in the quotient
            return gradients[0] * torch.where(value != 0, result / value, 0), None, None, None
        return torch.where(result == value * ctx.scale, gradient, 0), None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.size = dim, value.shape[dim]
        return collectives.all_gather([value], dim, Members())[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].narrow(ctx.dim, replica().rank * ctx.size, ctx.size), None


def all_reduce(kind: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None) -> torch.Tensor:
    """The reduction over all replicas, times ``scale``, as a new tensor."""
    return _AllReduce.apply(value, kind, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The values of all replicas, one after the other along ``dim``."""
    return _AllGather.apply(value, dim)
