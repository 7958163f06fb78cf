"""Stand-ins for the operands of one call, on `meta` or the CPU: tensors that lie as ours do, without our values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout


class Stand:
    """Makes the stand-ins; tensors that share a storage get stand-ins that share one."""

    def __init__(self, device: str, integers: Callable[..., torch.Tensor] = torch.zeros) -> None:
        self.device = torch.device(device)
        self.integers = integers
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.made: dict[int, torch.Tensor] = {}

    def run(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The operation's result on stand-ins."""
        arguments = [self.of(a) for a in args]
        return func(*arguments, **{name: None if name == "generator" else self.of(a) for name, a in kwargs.items()})

    def of(self, value: Any) -> Any:
        """The operand as the stand-ins' device takes it: tensors (in lists too) and devices are replaced, all else is itself."""
        if isinstance(value, XlaTensor):
            found = self.made.get(id(value))
            if found is None:
                found = self.made[id(value)] = self._tensor(value._storage, value._layout)
            return found
        if isinstance(value, torch.Tensor):
            return value if value.ndim == 0 else torch.zeros_like(value, device=self.device)
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(item) for item in value) if type(value) in (list, tuple) else value
        return self.device if isinstance(value, torch.device) else value

    def _tensor(self, storage: Any, layout: Layout) -> torch.Tensor:
        key = (id(storage), layout.dtype)
        base = self.bases.get(key)
        if base is None:
            size = storage.layout.numel * storage.layout.dtype.itemsize // layout.dtype.itemsize
            base = self.bases[key] = self._memory(max(size, layout.span), layout.dtype)
        return base.as_strided(layout.sizes, layout.strides, layout.offset)

    def _memory(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        # indices must be valid, probabilities not all zero
        make = torch.ones if dtype.is_floating_point or dtype.is_complex else self.integers
        return make(size, dtype=dtype, device=self.device)


def tensors(*operands: Any) -> list[XlaTensor]:
    """Those of the device, in lists too."""
    return [t for t in tree_leaves(operands) if isinstance(t, XlaTensor)]


def numel(args: tuple, kwargs: dict) -> int:
    """How many elements stand-ins would have."""
    return sum(t._storage.layout.numel for t in tensors(args, kwargs))
