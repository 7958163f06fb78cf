"""Before a checkpoint is loaded into an optimizer."""

from __future__ import annotations

import torch

from surestep.loop.boundaries import sync


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes an optimizer's state, of zeros, so that ``state_dict()`` has what a checkpoint can be loaded into. Parameters stay as they are.

    Returns the optimizer. Gradients are None afterwards.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
    sync()
    return optimizer
