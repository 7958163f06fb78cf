"""torch_xla.distributed.fsdp.utils"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from surestep.torch_xla.utils.checkpoint import checkpoint

__all__ = ["apply_xla_patch_to_nn_linear", "checkpoint_module"]


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Changes a module's ``forward`` so that its intermediate values are computed again in the backward pass instead of being kept.

    As ``XlaFullyShardedDataParallel(checkpoint_module(module))``, or with an ``auto_wrapper_callable`` that does so, its parameters are
    gathered again with them. Where no input requires a gradient, nothing is computed again.
    """
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in (*args, *kwargs.values())):
            names = tuple(kwargs)
            return checkpoint(partial(_called, original, len(args), names), *args, *kwargs.values())
        return original(*args, **kwargs)

    module.forward = forward
    return module


def _called(function: Any, count: int, names: tuple[str, ...], *values: Any) -> Any:
    """A function with named arguments, which ``checkpoint`` takes in a row."""
    return function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def apply_xla_patch_to_nn_linear(module: torch.nn.Module, patched_function: Any = None) -> torch.nn.Module:
    """The module as it is: the backward of ``F.linear`` uses the weight itself here, which is what torch_xla's patch is for."""
    return module
