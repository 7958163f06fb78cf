"""torch_xla.core.functions (`xf`): collectives that autograd goes through."""

from __future__ import annotations

import torch

from surestep.torch_xla import _later
from surestep.torch_xla.core import _replicas

__all__ = ["all_gather", "all_reduce", "distributed_mm"]


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: list[list[int]] | None = None) -> torch.Tensor:
    """The reduction over all replicas, times ``scale``, as a new tensor."""
    return _replicas.reduced(reduce_type, value, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The values of all replicas, one after the other along ``dim``."""
    return value.clone()


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """The product with a weight that is sharded over the replicas: with one, ``w @ x``."""
    return w @ x


__getattr__ = _later.getter("torch_xla.core.functions")
