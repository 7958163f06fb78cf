"""What works now in place of the names in ``_later``: said in their errors. The longest beginning of a name counts."""

from __future__ import annotations

_WHOLE = (
    "`torch_xla.launch` with `torch_xla.core.xla_model.optimizer_step`, or DistributedDataParallel, trains the same with whole weights on "
    "each device; on one device leave it out"
)
_KERNEL = "`surestep.lowering` gives a custom operator its meaning in JAX, a Pallas kernel's too"
_ATTENTION = "torch.nn.functional.scaled_dot_product_attention runs on the device"
_TEXT = "JAX_DUMP_IR_TO=DIRECTORY writes the StableHLO of each program, XLA_FLAGS=--xla_dump_to=DIRECTORY what XLA makes of it"
_CACHE = "`torch_xla.runtime.initialize_cache` keeps compiled programs between runs"
_METRICS = "`surestep.metrics` has the counters, with the causes and lines of what was cut"
_BITS = "`torch_xla.amp.autocast` with dtype=torch.bfloat16"
_LOADER = "`torch_xla.distributed.parallel_loader.MpDeviceLoader`"

INSTEAD = {
    "torch_xla._XLAC._flash_attention": _ATTENTION,
    "torch_xla._XLAC._get_graph_hash": _CACHE,
    "torch_xla._XLAC._get_stablehlo": _TEXT,
    "torch_xla._XLAC._get_xla_tensors": _TEXT,
    "torch_xla._XLAC._mark_dynamic": "pad to a few fixed sizes: each size is a program of its own",
    "torch_xla._XLAC._xla_mark_bounded_dynamic": "pad to a few fixed sizes: each size is a program of its own",
    "torch_xla._XLAC._run_cached_graph": _CACHE,
    "torch_xla._XLAC._xla_warm_up_cache": _CACHE,
    "torch_xla._XLAC._xla_all_gather": "`torch_xla.core.xla_model.all_gather`",
    "torch_xla._XLAC._xla_all_reduce": "`torch_xla.core.xla_model.all_reduce`",
    "torch_xla._XLAC._xla_mark_sharding": _WHOLE,
    "torch_xla._XLAC.OpSharding": _WHOLE,
    "torch_xla._XLAC.ShardingType": _WHOLE,
    "torch_xla._XLAC.XlaShardingSpec": _WHOLE,
    "torch_xla._internal.tpu": "`torch_xla.runtime` says what there is on any platform",
    "torch_xla.core.dynamo_bridge": "torch.compile(model, backend='eager') traces models on the device",
    "torch_xla.core.functions.nms": "torchvision.ops.nms on the boxes' .cpu()",
    "torch_xla.core.xla_builder": _KERNEL,
    "torch_xla.core.xla_op_registry": _KERNEL,
    "torch_xla.core.xla_model.CoalescingBuckets": "`torch_xla.core.xla_model.reduce_gradients`",
    "torch_xla.core.xla_model.all_reduce_bucketized_gradients": "`torch_xla.core.xla_model.reduce_gradients`",
    "torch_xla.core.xla_model.check_view_sharing": "views are PyTorch's, and share what they share on the CPU: there is nothing to check",
    "torch_xla.core.xla_model.recv": "`torch_xla.core.xla_model.collective_permute`",
    "torch_xla.core.xla_model.send": "`torch_xla.core.xla_model.collective_permute`",
    "torch_xla.core.xla_model.get_stablehlo": _TEXT,
    "torch_xla.debug": _METRICS,
    "torch_xla.distributed.data_parallel": _WHOLE,
    "torch_xla.distributed.fsdp": _WHOLE,
    "torch_xla.distributed.parallel_loader": _LOADER,
    "torch_xla.distributed.spmd": _WHOLE,
    "torch_xla.distributed.zero_redundancy_optimizer": _WHOLE,
    "torch_xla.experimental.custom_kernel": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.distributed_checkpoint": "`torch_xla.core.xla_model.save`, or torch.save",
    "torch_xla.experimental.pallas_kernels": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.pjrt": "`torch_xla.runtime` has its functions",
    "torch_xla.experimental.plugins": "PJRT_DEVICE chooses among the platforms whose JAX plugins are installed",
    "torch_xla.experimental.quantized": _BITS,
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": _WHOLE,
    "torch_xla.experimental.tpu": "`torch_xla.runtime` says what there is on any platform",
    "torch_xla.experimental.xla_quantized_matmul": _BITS,
    "torch_xla.runtime.get_master_ip": "the environment variable MASTER_ADDR",
    "torch_xla.runtime.global_runtime_device_attributes": "`torch_xla.runtime.runtime_device_attributes`",
    "torch_xla.runtime.use_spmd": _WHOLE,
    "torch_xla.stablehlo": _TEXT,
    "torch_xla.utils.closures": "`torch_xla.core.xla_model.add_step_closure`, with run_async=True for another thread",
    "torch_xla.utils.keyd_queue": _LOADER,
}


def instead_of(name: str) -> str:
    """The sentence for a name's error; none where nothing takes its place."""
    longest = max((beginning for beginning in INSTEAD if name.startswith(beginning)), key=len, default=None)
    return "" if longest is None else f". Now: {INSTEAD[longest]}"
