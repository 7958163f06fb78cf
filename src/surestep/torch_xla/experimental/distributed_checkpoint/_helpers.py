"""Tensors that are split over the devices, as a checkpoint takes them: their parts, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from surestep.execute.tiling import ShardingType
from surestep.loop.nested import replaced
from surestep.tensor.sharding import XLAShard, sharding_type
from surestep.tensor.xla_tensor import XlaTensor


class _CpuShards(NamedTuple):
    """What this process's devices hold of a tensor."""

    shards: list[XLAShard]
    global_shape: torch.Size
    global_dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _CpuShards:
        return cls(tensor.local_shards, tensor.shape, tensor.dtype)  # type: ignore[missing-attribute] (an xla tensor has it)


def _is_sharded_tensor(value: Any) -> bool:
    """Whether a tensor is split over the devices; copies on each are no split."""
    return isinstance(value, XlaTensor) and sharding_type(value) in (ShardingType.TILED, ShardingType.PARTIAL)


def _sharded_cpu_state_dict(state_dict: Mapping[str, Any]) -> Any:
    """The state with tensors on the CPU, those that are split by their parts; no device and no process gathers them."""
    return replaced(
        state_dict,
        lambda tensor: _CpuShards.of(tensor) if _is_sharded_tensor(tensor) else tensor.detach().cpu().clone(),
        lambda value: isinstance(value, torch.Tensor),
    )
