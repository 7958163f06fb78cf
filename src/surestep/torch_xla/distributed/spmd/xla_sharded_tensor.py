"""torch_xla.distributed.spmd.xla_sharded_tensor: what a sharded tensor is called. Here it is the xla tensor itself, not a wrapper."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor.sharding import XLAShard
from surestep.tensor.xla_tensor import XlaTensor

__all__ = ["XLAShard", "XLAShardedTensor"]


class _Meta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, XlaTensor) and instance._storage.sharding is not None


class XLAShardedTensor(metaclass=_Meta):
    """An xla tensor of which somebody has said how it lies over the devices; ``isinstance`` says so.

    Any xla tensor has ``global_tensor``, ``local_shards``, ``load_local_shards_``, ``sharding_spec`` and ``sharding_type``.
    """

    def __new__(cls, elem: torch.Tensor, *args: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
        """The tensor itself, or with ``requires_grad`` one on the same memory that wants gradients. ``TypeError`` for a mesh or a spec."""
        if args or kwargs:
            raise TypeError("XLAShardedTensor takes a tensor. How it lies is said by mark_sharding(tensor, mesh, partition_spec)")
        return elem.detach().requires_grad_() if requires_grad and not elem.requires_grad else elem
