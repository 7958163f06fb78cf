"""torch_xla.distributed.spmd.xla_sharding: meshes and shardings by torch_xla's names."""

from __future__ import annotations

from typing import Any

import torch

from surestep.execute.tiling import ShardingType
from surestep.parallel.alike import shard_as
from surestep.parallel.mesh import (
    HybridMesh,
    MarkShardingFunction,
    Mesh,
    PartitionSpec,
    ShardingSpec,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    get_1d_mesh,
    get_global_mesh,
    mark_sharding,
    mark_sharding_with_gradients,
    set_global_mesh,
)
from surestep.torch_xla import _later
from surestep.torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Says how a tensor lies over the devices from here on in this program; to be said again of one that was marked already."""
    return mark_sharding(t, mesh, partition_spec)


def wrap_as_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself: sharded tensors have no wrapper here."""
    return t


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself: sharded tensors have no wrapper here."""
    return t


def wrap_if_sharded(x: Any) -> Any:
    """What it was given: sharded tensors have no wrapper here."""
    return x


class XLAPatchedLinear:
    """``torch.nn.functional.linear``, which is one operation here that keeps the dimensions of its operands, and so their shardings."""

    @staticmethod
    def apply(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``input @ weight.T + bias``"""
        return torch.nn.functional.linear(input, weight, bias)


def xla_patched_nn_linear_forward(m: torch.nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The module's forward."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)


class EinsumLinear(torch.nn.Linear):
    """``torch.nn.Linear``, which needs no other form here."""


def apply_xla_patch_to_nn_linear(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself: ``torch.nn.Linear`` keeps shardings here as it is."""
    return module


def apply_backward_optimization_barrier(m: torch.nn.Module) -> None:
    """Keeps XLA from fusing the module's backward with others'. Values are the same without it, and it isn't part of the program here."""


__getattr__ = _later.getter("torch_xla.distributed.spmd.xla_sharding")
