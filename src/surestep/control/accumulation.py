"""``gradient_accumulation``: the gradients of many small batches, summed up in one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from surestep.control.scan import scan
from surestep.control.trees import described


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    carried_tensors: tuple[torch.Tensor, ...] | torch.Tensor | None = None,
    *more_carried: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Runs ``train_step(*slices, *carried)`` and its backward pass for each slice of ``iterable_tensors`` along their first dimension.

    ``train_step`` is recorded and compiled once. It returns the loss, or a tuple of the loss and the next carried tensors. The parameters'
    ``grad`` get the mean of the slices' gradients, added to what is there. Carried tensors are given as one tuple, or one after the other.

    Returns:
        The mean of the losses, and the last carried tensors.

    Raises:
        ValueError: ``iterable_tensors`` is empty, or its tensors are, or differ in their first size; the loss isn't one number.
    """
    if not iterable_tensors:
        raise ValueError("gradient_accumulation: iterable_tensors cannot be empty")
    for position, tensor in enumerate(iterable_tensors):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"gradient_accumulation: element {position} of iterable_tensors is not a tensor")
        if tensor.numel() == 0 or tensor.ndim == 0:
            raise ValueError(f"gradient_accumulation: element {position} of iterable_tensors is empty, or has no dimension to go along")
        if tensor.shape[0] != iterable_tensors[0].shape[0]:
            raise ValueError(f"gradient_accumulation: element {position} of iterable_tensors has inconsistent first dimension")
    steps = iterable_tensors[0].shape[0]
    first = (carried_tensors,) if isinstance(carried_tensors, torch.Tensor) else tuple(carried_tensors or ())
    carried = (*first, *more_carried)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for name, parameter in model.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise NotImplementedError(
                f"gradient_accumulation: {name} has a hook for each time a gradient was added to it, which happens once here, for all "
                f"slices. Call it after gradient_accumulation"
            )
    used: list[bool] = []

    def step(carry: tuple, slices: tuple) -> tuple[tuple, torch.Tensor]:
        state, sums = carry
        with torch.enable_grad():
            result = train_step(*slices, *state)
            loss, *after = result if isinstance(result, (tuple, list)) else (result,)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or len(after) != len(state):
                raise ValueError(
                    f"gradient_accumulation: train_step must return the loss, of one element, and {len(state)} carried tensors; it "
                    f"returned {', '.join(map(described, result if isinstance(result, (tuple, list)) else [result]))}"
                )
            loss = loss / steps
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        used[:] = [grad is not None for grad in grads]
        sums = tuple(total if grad is None else total + grad for total, grad in zip(sums, grads, strict=True))
        return (tuple(after), sums), loss.reshape(()).detach()

    with torch.no_grad():
        zeros = tuple(torch.zeros_like(parameter) for parameter in parameters)
        (state, sums), losses = scan(step, (carried, zeros), tuple(iterable_tensors))
        for parameter, grad, is_used in zip(parameters, sums, used, strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = grad
            elif is_used:
                parameter.grad += grad
        return losses.sum(), *state
