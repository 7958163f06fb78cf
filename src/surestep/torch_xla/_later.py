"""What torch_xla 2.9 has and surestep hasn't yet: asking for it is an error that names it, rather than something that pretends."""

from __future__ import annotations

import dis
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from surestep.torch_xla._instead import instead_of

MODULES = frozenset(
    f"torch_xla.{name}"
    for name in (
        *("core.dynamo_bridge", "core.xla_builder", "core.xla_op_registry"),
        *(
            "debug.frame_parser_util",
            "debug.graph_counter_plugin",
            "debug.metrics_compare_utils",
            "debug.metrics_saver",
            "debug.model_comparator",
        ),
        *("distributed.data_parallel", "distributed.fsdp", "distributed.zero_redundancy_optimizer"),
        *("experimental.custom_kernel", "experimental.distributed_checkpoint"),
        *("experimental.mark_pattern_utils", "experimental.pallas_kernels", "experimental.pjrt"),
        *("experimental.pjrt_backend", "experimental.plugins", "experimental.quantized"),
        *(
            "experimental.spmd_fully_sharded_data_parallel",
            "experimental.tpu",
            "experimental.xla_quantized_matmul",
        ),
        *("stablehlo", "tf_saved_model_integration", "utils.closures", "utils.gcsfs", "utils.keyd_queue"),
    )
)

NAMES = {
    "torch_xla": {"_found_libtpu", "backends"},
    "torch_xla._XLAC": {
        *("OpSharding", "ShardingType", "XlaShardingSpec", "_xla_mark_sharding", "_xla_mark_sharding_"),
        *("_flash_attention_backward", "_flash_attention_forward"),
        *("_flash_attention_position_ids_backward", "_flash_attention_position_ids_forward"),
        *("_get_graph_hash", "_get_stablehlo", "_get_xla_tensors_dot", "_get_xla_tensors_hlo", "_get_xla_tensors_text"),
        *("_mark_dynamic", "_run_cached_graph", "_xla_all_gather", "_xla_all_reduce", "_xla_mark_bounded_dynamic", "_xla_warm_up_cache"),
    },
    "torch_xla._internal.tpu": {"get_tpu_env", "get_tpu_type", "get_worker_ips", "task_id", "worker_id"},
    "torch_xla.core.functions": {"nms"},
    "torch_xla.core.xla_model": {
        *("CoalescingBuckets", "all_reduce_bucketized_gradients", "check_view_sharing", "recv", "send"),
        *("get_stablehlo", "get_stablehlo_bytecode"),
    },
    "torch_xla.distributed.parallel_loader": {"BatchTracker", "PerDeviceQueue"},
    "torch_xla.distributed.spmd": {
        *(
            "HybridMesh",
            "Mesh",
            "ShardingSpec",
            "ShardingType",
            "XLAPatchedLinear",
            "XLAShardedTensor",
            "apply_backward_optimization_barrier",
        ),
        *("clear_sharding", "disable_manual_sharding", "enable_manual_sharding", "get_1d_mesh", "get_global_mesh", "mark_sharding"),
        *("mark_sharding_with_gradients", "set_global_mesh", "shard_as", "wrap_if_sharded", "xla_patched_nn_linear_forward"),
    },
    "torch_xla.runtime": {"get_master_ip", "global_runtime_device_attributes", "use_spmd"},
}


def getter(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: its submodules, imported when they are asked for; an error for the rest."""
    later = NAMES.get(module, frozenset())

    def __getattr__(name: str) -> Any:
        full = f"{module}.{name}"
        if (
            not name.startswith("__")
            and hasattr(sys.modules[f"surestep.{module}"], "__path__")
            and importlib.util.find_spec(f"surestep.{full}")
        ):
            return importlib.import_module(f"surestep.{full}")
        if name in later or full in MODULES:
            raise _error(full)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def check_module(full: str) -> None:
    """ImportError for a module that isn't there yet."""
    if full in MODULES or any(full.startswith(f"{name}.") for name in MODULES):
        raise ImportError(_message(full), name=full)


def _error(full: str) -> AttributeError | ImportError:
    """``from module import name`` replaces an AttributeError by a message of its own, so that it gets an ImportError."""
    frame = sys._getframe(2)
    instruction = frame.f_code.co_code[frame.f_lasti]
    return ImportError(_message(full)) if dis.opname[instruction] == "IMPORT_FROM" else AttributeError(_message(full))


def _message(full: str) -> str:
    return f"{full} isn't in surestep yet: torch_xla has it, surestep's drop-in doesn't{instead_of(full)}"
