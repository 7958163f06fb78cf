"""The same piece of PyTorch on the CPU and on xla, compared: CPU eager is the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def to_xla(value: Any) -> Any:
    """Tensors moved, gradients wanted where they were; all else as it is."""

    def move(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return item.detach().to("xla").requires_grad_(item.requires_grad)

    return tree_map(move, value)


def same(function: Callable[..., Any], *inputs: Any, strides: bool = True, **tolerances: float) -> None:
    """``function(*inputs)`` gives the same tensors on both, and leaves the inputs the same (values, sizes, strides, dtypes)."""
    theirs = tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, inputs)
    ours = to_xla(inputs)
    compare((function(*theirs), theirs), (function(*ours), ours), strides=strides, **tolerances)


def compare(theirs: Any, ours: Any, strides: bool = True, **tolerances: float) -> None:
    """All tensors in two structures, in order."""
    left, right = tree_leaves(theirs), tree_leaves(ours)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor):
            assert b.device.type == "xla", f"on {b.device}"
            assert a.shape == b.shape and a.dtype == b.dtype
            if strides and a.numel():
                assert moving(a) == moving(b), f"strides {a.stride()} on the CPU, {b.stride()} here"
            torch.testing.assert_close(
                b.detach().cpu(), a.detach().resolve_conj().resolve_neg(), equal_nan=True, check_stride=False, **tolerances
            )
        else:
            assert a == b


def moving(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of the dimensions that have more than one element."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
