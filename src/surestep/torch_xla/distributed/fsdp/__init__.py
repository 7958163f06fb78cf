"""torch_xla.distributed.fsdp: parameters, gradients and the optimizer's state sharded over the processes."""

from surestep.torch_xla import _later
from surestep.torch_xla.distributed.fsdp.state_dict_utils import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from surestep.torch_xla.distributed.fsdp.utils import checkpoint_module
from surestep.torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]

__getattr__ = _later.getter("torch_xla.distributed.fsdp")
