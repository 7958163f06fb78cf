"""The CTC loss takes its lengths as lists, or as tensors on the CPU or the device; targets in rows, or one after the other.

They are brought to the device, targets in rows, so that other lengths are not another program. What the host knows of them is checked.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import mixed, record
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor

_aten = torch.ops.aten
_LOSS = record.handler(Operation(_aten._ctc_loss.Tensor))
_BACKWARD = record.handler(Operation(_aten._ctc_loss_backward.Tensor))


def reduced(args: tuple, kwargs: dict) -> Any:
    """``ctc_loss`` with lengths in tensors, which PyTorch would take to be on the device for a tensor subclass, and only for one."""
    log_probs, targets, input_lengths, target_lengths, *options = args
    if not isinstance(log_probs, XlaTensor):
        raise mixed.error(_aten.ctc_loss.Tensor, args, kwargs)
    inputs, labels = _known(input_lengths), _known(target_lengths)
    if inputs is None or labels is None:
        lengths = (each.to(log_probs.device) for each in (input_lengths, target_lengths))
        return _aten.ctc_loss.Tensor.decompose(log_probs, targets, *lengths, *options, **kwargs)
    return _aten.ctc_loss.IntList(log_probs, targets, inputs, labels, *options, **kwargs)


def loss(args: tuple, kwargs: dict) -> Any:
    """``_ctc_loss``: each sequence's loss, and what backward needs."""
    log_probs, targets, input_lengths, target_lengths, *options = args
    _check(log_probs, targets, input_lengths, target_lengths, *options)
    return _LOSS((log_probs, *_on_device(log_probs, targets, input_lengths, target_lengths), *options), kwargs)


def backward(args: tuple, kwargs: dict) -> Any:
    """``_ctc_loss_backward``: the gradient of the logarithms of probabilities."""
    grad, log_probs, targets, input_lengths, target_lengths, *rest = args
    return _BACKWARD((grad, log_probs, *_on_device(log_probs, targets, input_lengths, target_lengths), *rest), kwargs)


def _known(lengths: Any) -> list[int] | None:
    """The lengths where the host knows them."""
    if isinstance(lengths, XlaTensor):
        return None
    return lengths.reshape(-1).tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _check(log_probs: XlaTensor, targets: torch.Tensor, inputs: Any, labels: Any, *options: Any) -> None:
    """Raises what PyTorch raises. Lengths that only the device knows are taken to be right."""
    known, named = _known(inputs), _known(labels)
    if named is None:  # targets one after the other: their lengths add up to all of them
        named = [targets.numel() if targets.ndim == 1 else 0] + [0] * (labels.numel() - 1)
    _aten._ctc_loss.default(_meta(log_probs), _meta(targets), [0] * inputs.numel() if known is None else known, named, *options)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _on_device(log_probs: XlaTensor, targets: torch.Tensor, inputs: Any, labels: Any) -> tuple[torch.Tensor, ...]:
    known = _known(labels)
    where = log_probs.device
    inputs, labels = (torch.as_tensor(each, dtype=torch.int64).to(where) for each in (inputs, labels))
    targets = targets.to(where)
    if targets.ndim == 1:
        longest = targets.numel() if known is None else max(known, default=0)
        places = (labels.cumsum(0) - labels)[:, None] + torch.arange(longest, device=where)
        targets = targets[places.clamp(max=max(targets.numel() - 1, 0))] if longest else targets.new_zeros((len(labels), 0))
    return targets, inputs, labels
