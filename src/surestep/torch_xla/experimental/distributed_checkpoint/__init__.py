"""torch_xla.experimental.distributed_checkpoint: ``torch.distributed.checkpoint`` with tensors that are split over the devices."""

from surestep.torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
from surestep.torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from surestep.torch_xla.experimental.distributed_checkpoint.util import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
