"""What an operation gives, by PyTorch's own word: it is run on `meta` tensors that lie like ours do. Errors come from there, in PyTorch's wording."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout


class Stand:
    """Makes meta stand-ins for the operands of one call; tensors that share a storage get stand-ins that share one, so that PyTorch's overlap checks hold."""

    def __init__(self) -> None:
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.made: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, XlaTensor):
            found = self.made.get(id(value))
            if found is None:
                found = self.made[id(value)] = self._tensor(value._storage, value._layout)
            return found
        if isinstance(value, torch.Tensor):
            return value if value.ndim == 0 else torch.empty_like(value, device="meta")
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(item) for item in value) if type(value) in (list, tuple) else value
        return torch.device("meta") if isinstance(value, torch.device) else value

    def _tensor(self, storage: Any, layout: Layout) -> torch.Tensor:
        key = (id(storage), layout.dtype)
        base = self.bases.get(key)
        if base is None:
            size = storage.layout.numel * storage.layout.dtype.itemsize // layout.dtype.itemsize
            base = self.bases[key] = torch.empty(max(size, layout.span), dtype=layout.dtype, device="meta")
        return base.as_strided(layout.sizes, layout.strides, layout.offset)


def on_meta(func: Any, args: tuple, kwargs: dict) -> tuple[Any, Stand]:
    """The operation's result on meta, and the stand-ins that it was given."""
    stand = Stand()
    arguments = [stand.of(a) for a in args]
    keywords = {name: stand.of(a) for name, a in kwargs.items() if name != "generator"}
    if keywords.get("pin_memory"):
        raise RuntimeError("pin_memory is for CPU tensors: the xla device copies from any host memory; leave it out")
    return func(*arguments, **keywords), stand
