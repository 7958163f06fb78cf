"""What stands for an XlaTensor while ``torch.compile`` traces: its figures (sizes, strides, dtype) without a storage.

Dynamo takes a tensor subclass apart into inner tensors, makes those fake, and puts it together again. Ours has one inner tensor, on `meta`;
put together over a fake one it becomes a ``Figures``, whose operations run on the inner tensors alone. So Dynamo traces a model on the xla
device into one graph, and what the backend gets are real XlaTensors: calling the graph records it like any other code. What is not served
is AOTAutograd, which wants to functionalize inside the subclass; a backend for this device doesn't need it, because recording is functional
already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from surestep import _compat
from surestep.tensor.xla_tensor import XlaTensor


class Figures(XlaTensor):
    """An XlaTensor that is only being traced."""

    _figures: torch.Tensor = None  # type: ignore[assignment] (stand_in sets it; it hides XlaTensor's property)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made: dict[int, torch.Tensor] = {}  # fake tensors that a factory has made, by what is given in their places

        def inner(value: Any) -> Any:
            if isinstance(value, Figures):
                return value._figures
            if _compat.is_fake_on(value, "xla"):
                given = _compat.as_if_on_meta(value)
                made[id(given)] = value
                return given
            return torch.device("meta") if isinstance(value, torch.device) and value.type == "xla" else value

        def outer(out: Any) -> Any:
            if not isinstance(out, torch.Tensor):
                return out
            return made[id(out)] if id(out) in made else stand_in(out)

        args, kwargs = tree_map(inner, (args, kwargs or {}))
        return tree_map(outer, func(*args, **kwargs))

    def untyped_storage(self) -> torch.UntypedStorage:
        """The inner tensor's: fake as that is."""
        return self._figures.untyped_storage()

    def data_ptr(self) -> int:
        """Nothing: there is no storage whose identity it could tell."""
        return 0

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """PyTorch's own: what is traced is no parameter that moves."""
        return torch.Tensor.to(self, *args, **kwargs)

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """PyTorch's own, as ``to``."""
        return torch.Tensor.cpu(self, *args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Figures({self._figures!r})"


def stand_in(inner: torch.Tensor) -> Figures:
    """The traced tensor that lies as ``inner`` does."""
    if _compat.is_functional(inner):
        raise RuntimeError(
            "this backend of torch.compile traces through AOTAutograd, which can't look into tensors on the xla device. Write "
            "torch.compile(..., backend='eager'), or none of it: what is recorded is compiled in any case"
        )
    tensor = _compat.make_wrapper(
        Figures,
        inner.shape,
        strides=inner.stride(),
        storage_offset=inner.storage_offset(),
        dtype=inner.dtype,
        device=torch.device("xla", 0),
    )
    tensor._figures = inner
    return tensor
