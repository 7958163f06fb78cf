"""Operands on several devices: what is refused, and PyTorch's words for it with the operation, the argument and what to write."""

from __future__ import annotations

import torch

from surestep.tensor.xla_tensor import XlaTensor

_aten = torch.ops.aten

# These take some operands on the CPU on each device.
_TAKEN = {_aten._pack_padded_sequence.default, _aten._pack_padded_sequence_backward.default, _aten._pad_packed_sequence.default}


class Mixed(Exception):
    """An operand isn't where the first xla operand is. Never leaves ``record.handler``, which knows the call that ``error`` tells of."""


def error(operation: torch._ops.OpOverload, args: tuple, kwargs: dict) -> RuntimeError:
    """What the user is told of a call with operands on several devices."""
    device, ((name, found), *_) = _others(operation, args, kwargs)
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {device} and {found.device}! "
        f"{operation}: argument {name} is on {found.device}, different from the other tensors on {device}. "
        f"Move it there: .to({str(device)!r})."
    )


def check(operation: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
    """Before an operation of PyTorch runs on the host, where all operands are welcome: as on the device, all must be there."""
    if operation.namespace == "aten" and operation not in _TAKEN and _others(operation, args, kwargs)[1]:
        raise error(operation, args, kwargs)


def _others(operation: torch._ops.OpOverload, args: tuple, kwargs: dict) -> tuple[torch.device, list[tuple[str, torch.Tensor]]]:
    """The first xla operand's device, and the operands that are elsewhere, by name. (A number on the CPU isn't, unless it is written.)"""
    schema = operation._schema.arguments
    written = {argument.name for argument in schema if argument.alias_info is not None and argument.alias_info.is_write}
    placed: list[tuple[str, str, torch.Tensor]] = []
    for name, value in (*((argument.name, value) for argument, value in zip(schema, args, strict=False)), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            placed.append((name, name, value))
        elif isinstance(value, (list, tuple)):
            placed += [(name, f"{name}[{i}]", item) for i, item in enumerate(value) if isinstance(item, torch.Tensor)]
    device = next(tensor.device for _, _, tensor in placed if type(tensor) is XlaTensor)
    return device, [
        (shown, tensor)
        for name, shown, tensor in placed
        if (type(tensor) is not XlaTensor or tensor.device != device) and (tensor.ndim or tensor.device.type != "cpu" or name in written)
    ]
