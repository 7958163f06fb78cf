"""What torch_xla 2.9 has and surestep hasn't yet, and what works now in its place. The drop-in's errors and ``surestep check`` say it.

Plain data: it is read without PyTorch.
"""

from __future__ import annotations

MODULES = frozenset(
    f"torch_xla.{name}"
    for name in (
        *("_dynamo", "_internal.c10d_registration", "_internal.decomp_registration", "_internal.gpu", "_internal.neuron"),
        *("_internal.rendezvous", "_internal.utils", "core.dynamo_bridge"),
        *(
            "debug.frame_parser_util",
            "debug.graph_counter_plugin",
            "debug.metrics_compare_utils",
            "debug.metrics_saver",
        ),
        *("distributed.cluster", "distributed.fsdp.xla_flatten_params_wrapper", "distributed.xla_dist"),
        *("experimental.apply_layers", "experimental.dynamo_mark_sharding"),
        *("experimental.dynamo_set_buffer_donor", "experimental.gmm", "experimental.gru", "experimental.mark_pattern_utils"),
        *("experimental.megablox", "experimental.pallas_kernels", "experimental.pjrt", "experimental.plugins", "experimental.quantized"),
        *("experimental.sparse", "experimental.splash_attention", "experimental.spmd", "experimental.stablehlo_custom_call"),
        *("experimental.stablehlo_saved_model", "experimental.tpu", "experimental.triton", "experimental.tuned_block_sizes"),
        *("experimental.unbounded_dynamism_export", "experimental.xla_dynamic_broadcast", "experimental.xla_dynamic_reshape_ops"),
        *("experimental.xla_marker", "experimental.xla_mlir_debuginfo", "experimental.xla_quantized_matmul"),
        *("experimental.xla_sharded_tensor", "experimental.xla_sharding", "stablehlo", "tf_saved_model_integration"),
        *("utils.buffer_donor_context", "utils.cached_dataset", "utils.closures", "utils.gcsfs", "utils.keyd_queue"),
        "utils.tf_record_reader",
    )
)

NAMES = {
    "torch_xla": {"_found_libtpu"},
    "torch_xla._XLAC": {
        *("OpSharding", "XlaShardingSpec", "_global_tensor_from_cpu_shards", "_xla_get_auto_sharding", "_xla_set_auto_sharding"),
        *("_mark_manual_sharding", "_spmd_full_to_shard_shape", "_spmd_shard_to_full_shape"),
        *("_get_local_shard_replica_and_indices", "_get_local_shards", "_load_local_shards", "_get_xla_tensor_debug_info"),
        *("_flash_attention_backward", "_flash_attention_forward"),
        *("_flash_attention_position_ids_backward", "_flash_attention_position_ids_forward"),
        *("_get_graph_hash", "_get_stablehlo", "_get_xla_tensors_dot", "_get_xla_tensors_hlo", "_get_xla_tensors_text"),
        *("_mark_dynamic", "_run_cached_graph", "_xla_all_gather", "_xla_all_reduce", "_xla_mark_bounded_dynamic", "_xla_warm_up_cache"),
    },
    "torch_xla._internal.pjrt": {"initialize_multiprocess", "initialize_singleprocess", "spawn_threads"},
    "torch_xla._internal.tpu": {"get_tpu_env", "get_tpu_type", "get_worker_ips", "task_id", "worker_id"},
    "torch_xla.core.functions": {"nms"},
    "torch_xla.core.xla_builder": {
        *("computation_from_module_proto", "create_builder", "create_computation", "create_placeholder_tensor"),
        *("get_computation_hlo", "jax_func_to_xla_computation", "mkleaf", "mkop", "mkparam", "mkshape", "tensor_shape"),
    },
    "torch_xla.core.xla_model": {
        *("get_stablehlo", "get_stablehlo_bytecode"),
    },
    "torch_xla.distributed.parallel_loader": {"BatchTracker", "PerDeviceQueue"},
    "torch_xla.distributed.spmd": {"_mark_manual_sharding", "auto_policy"},
    "torch_xla.distributed.spmd.xla_sharding": {"_mark_manual_sharding"},
    "torch_xla.experimental.custom_kernel": {
        *("multi_queries_paged_attention", "paged_attention", "ragged_paged_attention", "repeat_with_fixed_output_size", "trace_pallas"),
    },
    "torch_xla.experimental.scan": {"Scan"},
    "torch_xla.runtime": {"disable_spmd", "get_master_ip"},
}

_SHARDING = "`torch_xla.distributed.spmd.mark_sharding` says of each tensor how it lies over the devices"
_SHARDS = "a tensor's .local_shards are what each device holds, and .load_local_shards_(shards) puts other values there"
_MANUAL = "`torch_xla.distributed.spmd.enable_manual_sharding` and `torch_xla.distributed.spmd.disable_manual_sharding`"
_KERNEL = "`torch_xla.core.xla_builder.call_jax` calls a JAX function, a Pallas kernel too, on tensors"
_EXPORT = "torch.export exports a model on the CPU"
_PROCESSES = "torchrun starts a process for each device, on one host or several, and `torch_xla.launch` on one"
_FILES = (
    "a torch.utils.data.Dataset reads files in its workers, and `torch_xla.distributed.parallel_loader.MpDeviceLoader` ahead of the step"
)
_GROUPS = "torch.nn.functional.grouped_mm multiplies groups of rows by a weight each, on the device"
_ATTENTION = "torch.nn.functional.scaled_dot_product_attention runs on the device"
_TEXT = "JAX_DUMP_IR_TO=DIRECTORY writes the StableHLO of each program, XLA_FLAGS=--xla_dump_to=DIRECTORY what XLA makes of it"
_CACHE = "`torch_xla.runtime.initialize_cache` keeps compiled programs between runs"
_METRICS = "`surestep.metrics` has the counters, with the causes and lines of what was cut"
_BITS = "`torch_xla.amp.autocast` with dtype=torch.bfloat16"
_LOADER = "`torch_xla.distributed.parallel_loader.MpDeviceLoader`"

_RUNTIME = "`torch_xla.runtime` has its functions"

INSTEAD = {
    "torch_xla._dynamo": "torch.compile(model, backend='openxla') traces models on the device",
    "torch_xla._internal.c10d_registration": "`torch_xla.distributed.xla_backend`, which is imported to the same end",
    "torch_xla._internal.decomp_registration": "nothing: PyTorch's operators are decomposed by themselves where that is needed",
    "torch_xla._internal.gpu": _RUNTIME,
    "torch_xla._internal.neuron": _RUNTIME,
    "torch_xla._internal.pjrt": _PROCESSES,
    "torch_xla._internal.utils": "`torch_xla.core.xla_model.parse_xla_device`",
    "torch_xla._internal.rendezvous": "torch.distributed.init_process_group('xla', init_method='xla://')",
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
    "torch_xla._XLAC._get_local_shard": _SHARDS,
    "torch_xla._XLAC._get_xla_tensor_debug_info": _TEXT,
    "torch_xla._XLAC._global_tensor_from_cpu_shards": _SHARDS,
    "torch_xla._XLAC._load_local_shards": _SHARDS,
    "torch_xla._XLAC._mark_manual_sharding": _MANUAL,
    "torch_xla._XLAC._spmd": _MANUAL,
    "torch_xla._XLAC._xla_get_auto_sharding": _SHARDING,
    "torch_xla._XLAC._xla_set_auto_sharding": _SHARDING,
    "torch_xla._XLAC.OpSharding": "mesh.get_op_sharding(partition_spec) gives one; `torch_xla.distributed.spmd.mark_sharding` needs none",
    "torch_xla._XLAC.XlaShardingSpec": _SHARDING,
    "torch_xla._internal.tpu": "`torch_xla.runtime` says what there is on any platform",
    "torch_xla.core.dynamo_bridge": "torch.compile(model, backend='openxla') traces models on the device",
    "torch_xla.core.functions.nms": "torchvision.ops.nms on the boxes' .cpu()",
    "torch_xla.core.xla_builder": _KERNEL,
    "torch_xla.core.xla_builder.create_placeholder_tensor": "torch.empty(shape, device='xla'), which is given memory when it is first used",
    "torch_xla.core.xla_model.get_stablehlo": _TEXT,
    "torch_xla.debug": _METRICS,
    "torch_xla.distributed.cluster": _PROCESSES,
    "torch_xla.distributed.fsdp.xla_flatten": "`torch_xla.distributed.fsdp.XlaFullyShardedDataParallel` has flatten_parameters=True",
    "torch_xla.distributed.xla_dist": _PROCESSES,
    "torch_xla.distributed.parallel_loader": _LOADER,
    "torch_xla.distributed.spmd": _SHARDING,
    "torch_xla.distributed.spmd._mark_manual_sharding": _MANUAL,
    "torch_xla.distributed.spmd.xla_sharding._mark_manual_sharding": _MANUAL,
    "torch_xla.experimental.apply_layers": "`torch_xla.experimental.scan_layers.scan_layers`",
    "torch_xla.experimental.dynamo_mark_sharding": _SHARDING,
    "torch_xla.experimental.dynamo_set_buffer_donor": "nothing: memory that nobody can read any more is donated by itself",
    "torch_xla.experimental.gmm": _GROUPS,
    "torch_xla.experimental.gru": "torch.nn.GRU runs on the device",
    "torch_xla.experimental.megablox": _GROUPS,
    "torch_xla.experimental.scan": "`torch_xla.experimental.scan.scan`, through which gradients flow",
    "torch_xla.experimental.sparse": "dense tensors, with index_add and scatter_add",
    "torch_xla.experimental.stablehlo_saved_model": _EXPORT,
    "torch_xla.experimental.tuned_block_sizes": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.unbounded_dynamism_export": _EXPORT,
    "torch_xla.experimental.xla_dynamic": _EXPORT,
    "torch_xla.experimental.xla_mlir_debuginfo": _TEXT,
    "torch_xla.experimental.splash_attention": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.spmd": _SHARDING,
    "torch_xla.experimental.stablehlo_custom_call": _KERNEL,
    "torch_xla.experimental.triton": _KERNEL,
    "torch_xla.experimental.xla_marker": _TEXT,
    "torch_xla.experimental.xla_sharded_tensor": _SHARDING,
    "torch_xla.experimental.xla_sharding": _SHARDING,
    "torch_xla.experimental.custom_kernel": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.pallas_kernels": f"{_ATTENTION}; {_KERNEL}",
    "torch_xla.experimental.pjrt": _RUNTIME,
    "torch_xla.experimental.plugins": "PJRT_DEVICE chooses among the platforms whose JAX plugins are installed",
    "torch_xla.experimental.quantized": _BITS,
    "torch_xla.experimental.tpu": "`torch_xla.runtime` says what there is on any platform",
    "torch_xla.experimental.xla_quantized_matmul": _BITS,
    "torch_xla.runtime.disable_spmd": "run what isn't SPMD in another process: xla:0 stands for all devices until this one ends",
    "torch_xla.runtime.get_master_ip": "the environment variable MASTER_ADDR",
    "torch_xla.stablehlo": _TEXT,
    "torch_xla.utils.buffer_donor_context": "nothing: memory that nobody can read any more is donated by itself",
    "torch_xla.utils.cached_dataset": _FILES,
    "torch_xla.utils.tf_record_reader": _FILES,
    "torch_xla.utils.closures": "`torch_xla.core.xla_model.add_step_closure`, with run_async=True for another thread",
    "torch_xla.utils.keyd_queue": _LOADER,
}


def is_absent(full: str) -> bool:
    """Whether it is such a name or module, or in such a module."""
    module, _, name = full.rpartition(".")
    return name in NAMES.get(module, ()) or any(full == absent or full.startswith(f"{absent}.") for absent in MODULES)


def message(full: str) -> str:
    """The sentence for a name: what is wrong, and what to write."""
    return f"{full} isn't in surestep yet: torch_xla has it, surestep's drop-in doesn't{instead_of(full)}"


def instead_of(full: str) -> str:
    """What to write for a name; nothing where nothing takes its place. The longest beginning of the name counts."""
    longest = max((beginning for beginning in INSTEAD if full.startswith(beginning)), key=len, default=None)
    return "" if longest is None else f". Now: {INSTEAD[longest]}"
