"""Batch normalization writes its running statistics without saying so in its schema: here they are written as what they are."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import copies, metadata, record
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor

_aten = torch.ops.aten
_FUNCTIONAL = record.handler(Operation(_aten._native_batch_norm_legit_functional.default))
_NO_STATISTICS = record.handler(Operation(_aten._native_batch_norm_legit.no_stats))
_EVALUATION = record.handler(Operation(_aten._native_batch_norm_legit_no_training.default))


def batch_norm(args: tuple, kwargs: dict) -> tuple[XlaTensor, XlaTensor, XlaTensor]:
    """Returns output, saved mean, saved inverse deviation; updates the running statistics in training."""
    tensor, weight, bias, mean, variance, training, momentum, eps = args
    if not training:
        output, saved, _ = _EVALUATION((tensor, weight, bias, mean, variance, momentum, eps), {})
        return output, saved.new_empty(0), saved.new_empty(0)  # nothing is saved: backward takes the running statistics
    if mean is None:
        output, saved_mean, saved_deviation = _NO_STATISTICS((tensor, weight, bias, training, momentum, eps), {})
        return output, *_saved(args, saved_mean, saved_deviation)
    output, saved_mean, saved_deviation, new_mean, new_variance = _FUNCTIONAL(
        (tensor, weight, bias, mean, variance, training, momentum, eps), {}
    )
    copies.copy_((mean, new_mean), {})
    copies.copy_((variance, new_variance), {})
    return output, *_saved(args, saved_mean, saved_deviation)


def _saved(args: tuple, *values: XlaTensor) -> list[Any]:
    """In the dtype that the CPU has them in, and asks for in the backward: the parameters', or the operand's where there are none."""
    tensor, *parameters = args[:5]
    dtype = next((parameter for parameter in parameters if parameter is not None), tensor).dtype
    return [value if value.dtype is dtype else value.to(dtype) for value in values]


def batch_norm_out(args: tuple, kwargs: dict[str, Any]) -> tuple[XlaTensor, ...]:
    """The same into given tensors, which take the results' sizes."""
    targets = tuple(kwargs[name] for name in ("out", "save_mean", "save_invstd"))
    for target, result in zip(targets, batch_norm(args, {}), strict=True):
        if target.shape != result.shape:
            metadata.resize_out(target, result._layout)
        copies.copy_((target, result), {})
    return targets
