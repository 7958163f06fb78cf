"""The qualified names that rules speak of. What is the same under several names is one set."""

from __future__ import annotations

XM = "torch_xla.core.xla_model"
XR = "torch_xla.runtime"
XMP = "torch_xla.distributed.xla_multiprocessing"
PL = "torch_xla.distributed.parallel_loader"

SYNC = {"torch_xla.sync", f"{XM}.mark_step", "surestep.sync", "torch_xla._XLAC._xla_step_marker", "torch_xla._XLAC._xla_sync_multi"}
STEP = {"torch_xla.step", "surestep.step"}
COMPILE = {"torch_xla.compile", "torch_xla.experimental.compile", "torch_xla.experimental_compile", "surestep.compile"}
STEP_OR_COMPILE = STEP | COMPILE
OPTIMIZER_STEP = {f"{XM}.optimizer_step", "surestep.optimizer_step"}
REDUCE_GRADIENTS = {f"{XM}.reduce_gradients", f"{XM}.all_reduce", f"{XM}.all_reduce_bucketized_gradients"}
EAGER = {"torch_xla.experimental.eager_mode", "torch_xla.experimental.eager.eager_mode"}
CLOSURE = {f"{XM}.add_step_closure", "surestep.add_step_closure"}

XLA_DEVICE = {"torch_xla.device", f"{XM}.xla_device", "surestep.device", f"{XR}.xla_device", "torch_xla.experimental.pjrt.xla_device"}
DEVICE_LOADER = {f"{PL}.MpDeviceLoader", "surestep.MpDeviceLoader"}
PARALLEL_LOADER = {f"{PL}.ParallelLoader"}
DATA_LOADER = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}

LAUNCH = {"torch_xla.launch", f"{XMP}.spawn", f"{XMP}.launch"}
JOIN = {"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"}
TORCH_SPAWN = {"torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn"}

ORDINAL = {
    f"{XM}.get_ordinal",
    f"{XM}.get_local_ordinal",
    f"{XR}.global_ordinal",
    f"{XR}.local_ordinal",
    "torch_xla.experimental.pjrt.global_ordinal",
    "torch.distributed.get_rank",
}
MASTER = {f"{XM}.is_master_ordinal"}

SAVE = {f"{XM}.save"}
# What every replica has to reach.
COLLECTIVE = {
    f"{XM}.rendezvous",
    f"{XM}.all_reduce",
    f"{XM}.all_gather",
    f"{XM}.all_to_all",
    f"{XM}.reduce_scatter",
    f"{XM}.reduce_gradients",
    f"{XM}.mesh_reduce",
    f"{XM}.collective_broadcast",
    f"{XM}.broadcast_master_param",
    f"{XM}.optimizer_step",
    f"{XR}.rendezvous",
    "torch_xla.experimental.pjrt.rendezvous",
    "torch.distributed.barrier",
    "torch.distributed.all_reduce",
    "torch.distributed.all_gather",
    "torch.distributed.broadcast",
    "torch.distributed.reduce_scatter",
}
REDUCE_METRIC = COLLECTIVE - {f"{XM}.rendezvous", f"{XR}.rendezvous", f"{XM}.optimizer_step", f"{XM}.reduce_gradients"}

DDP = {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
SPMD_FSDP = {"torch_xla.experimental.spmd_fully_sharded_data_parallel.SpmdFullyShardedDataParallel"}
FSDP = SPMD_FSDP | {
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel.XlaFullyShardedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
}
SPMD = {f"{XR}.use_spmd", "torch_xla.distributed.spmd.set_global_mesh"}
SHARDED_OPTIMIZER = {
    "torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer",
    "torch_xla.distributed.zero_redundancy_optimizer.zero_redundancy_optimizer.ZeroRedundancyOptimizer",
}

CUDA_SCALER = {"torch.cuda.amp.GradScaler"}
SCALER = CUDA_SCALER | {"torch.amp.GradScaler", "torch_xla.amp.GradScaler", "torch.amp.grad_scaler.GradScaler"}
CUDA_AUTOCAST = {"torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast"}
AUTOCAST = {"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"}
XLA_AUTOCAST = {"torch_xla.amp.autocast"}

# Libraries that split a model over processes, and reduce what is to be reduced.
SPLITTING = {"neuronx_distributed", "neuronx_distributed_training", "nemo", "megatron", "accelerate", "lightning", "pytorch_lightning"}
SPLITTING |= {"deepspeed", "optimum", "torchtitan"}

PROGRESS = {"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.trange", "tqdm.std.tqdm"}

# Names by which one thing is known from several modules.
SAME = {
    "torch_xla.torch_xla": "torch_xla",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel": "torch_xla.distributed.fsdp",
    "surestep.torch_xla": "torch_xla",
}

# What star-imports bring in.
STARS = {
    XM: {"xla_device", "mark_step", "optimizer_step", "save", "get_ordinal", "xrt_world_size", "is_master_ordinal", "rendezvous"},
    "torch_xla": {"device", "sync", "step", "launch", "compile"},
}
