"""``torch.nn.functional.linear`` as one operation, and its backward as one.

PyTorch writes it as a transpose and a product, and their backward as seven more operations, each of which would be recorded by itself. It
has derivatives for `linear` as a whole too, and uses them for a device that has a kernel for it: this one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from surestep.tensor import record
from surestep.tensor.operation import Operation

_aten = torch.ops.aten


def register() -> list[torch.library.Library]:
    """Tells PyTorch that there is a kernel, and what its backward gives. The libraries must be kept alive."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", _kernel, "XLA")
    library.impl("linear_backward", _backward_figures, "Meta")
    register_flop_formula(_aten.linear_backward)(_backward_flops)
    return [library]


def _kernel(*args: Any) -> Any:
    """Never reached by an xla tensor, whose operations go to ``__torch_dispatch__`` first; that it exists is what counts."""
    from surestep.tensor.dispatch import boxed

    return boxed(_aten.linear.default, *args)


def _backward_figures(
    input: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    outputs = weight.shape[:-1]
    return (
        input.new_empty(input.shape) if output_mask[0] else None,
        weight.new_empty(weight.shape) if output_mask[1] else None,
        grad.new_empty(outputs) if output_mask[2] else None,
    )


def _backward_flops(input: torch.Size, grad: torch.Size, weight: torch.Size, output_mask: list[bool], **_: Any) -> int:
    """What ``FlopCounterMode`` counts: a product as large as the forward's for the input's gradient, and one for the weight's."""
    return 2 * math.prod(grad) * weight[-1] * (output_mask[0] + output_mask[1])


_recorded = record.handler(Operation(_aten.linear.default))


def linear(args: tuple, kwargs: dict) -> Any:
    """``linear(input, weight, bias)``"""
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    if bias is not None and bias.ndim > 1 and bias.requires_grad:
        raise RuntimeError(
            f"linear: a bias of shape {list(bias.shape)} can't be trained on the xla device, only one of shape (out_features) or (). "
            f"Add it yourself: F.linear(input, weight) + bias"
        )
    return _recorded(args, kwargs)
