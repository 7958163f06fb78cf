"""torch_xla.distributed.spmd (`xs`): tensors split over the devices of a mesh, and one program for all of them."""

from surestep.parallel.alike import shard_as
from surestep.parallel.mesh import (
    Mesh,
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
from surestep.torch_xla.distributed.spmd.api import xla_distribute_module, xla_distribute_tensor
from surestep.torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor
from surestep.torch_xla.distributed.spmd.xla_sharding import (
    HybridMesh,
    ShardingType,
    XLAPatchedLinear,
    annotate_custom_sharding,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

__all__ = [
    "HybridMesh",
    "Mesh",
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
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]

__getattr__ = _later.getter("torch_xla.distributed.spmd")
