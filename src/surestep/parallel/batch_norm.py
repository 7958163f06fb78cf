"""``torch.nn.SyncBatchNorm`` on the device. PyTorch's own says that it is for GPUs, before it asks the process group for anything."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from surestep.parallel import collectives
from surestep.parallel.collectives import Members
from surestep.tensor.xla_tensor import XlaTensor


def install() -> None:
    """From now on ``SyncBatchNorm`` knows the device."""
    original: Any = nn.SyncBatchNorm.forward
    if not hasattr(original, "__wrapped__"):

        @functools.wraps(original)
        def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
            if isinstance(input, XlaTensor) and self.training and dist.is_initialized():
                return _normalized(self, input, getattr(self.process_group or dist.group.WORLD, "members", None) or Members())
            return original(self, input)

        nn.SyncBatchNorm.forward = forward


def _normalized(module: nn.SyncBatchNorm, x: torch.Tensor, members: Members) -> torch.Tensor:
    """By the mean and variance of all processes' batches together."""
    module._check_input_dim(x)
    module._check_non_zero_input_channels(x)
    mean, variance, count = moments(x, members)
    _track(module, mean.detach(), (variance * count / (count - 1)).detach())
    return normalized(x, mean, variance, module)


def moments(x: torch.Tensor, members: Members) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each channel (dimension 1) the mean and the variance, ``[C]``, of all processes' batches together, which may be of different
    sizes; and how many values of a channel there are, ``[1]``. In float32 at least.
    """
    wide = _wide(x)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    own = torch.full((1,), x.numel() // x.shape[1], dtype=wide.dtype, device=x.device)
    total, count = _Sum.apply(members, torch.cat([wide.sum(axes), own])).split([x.shape[1], 1])
    mean = total / count
    return mean, _Sum.apply(members, (wide - _along(mean, x)).square().sum(axes)) / count, count


def normalized(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, module: Any) -> torch.Tensor:
    """The batch, normalized by each channel's mean and variance, and by the module's weight and bias where it has them."""
    result = (_wide(x) - _along(mean, x)) * _along(torch.rsqrt(variance + module.eps), x)
    if module.weight is not None:
        result = result * _along(module.weight, x) + _along(module.bias, x)
    return result.to(x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _along(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A number a channel, beside the batch."""
    return values.view([-1 if axis == 1 else 1 for axis in range(x.ndim)])


@torch.no_grad()
def _track(module: Any, mean: torch.Tensor, variance: torch.Tensor) -> None:
    if not module.track_running_stats or module.running_mean is None:
        return
    module.num_batches_tracked.add_(1)
    weight = 1.0 / module.num_batches_tracked if module.momentum is None else module.momentum
    for running, new in ((module.running_mean, mean), (module.running_var, variance)):
        running.add_((new.to(running.dtype) - running) * weight)


class _Sum(torch.autograd.Function):
    """The sum over all processes, in a loss that is the sum of theirs: so the gradient is summed as well."""

    @staticmethod
    def forward(ctx: Any, members: Members, value: torch.Tensor) -> torch.Tensor:
        ctx.members = members
        return collectives.all_reduce("sum", [value], members)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, _Sum.apply(ctx.members, gradients[0])
