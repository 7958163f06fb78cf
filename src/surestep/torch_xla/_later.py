"""What torch_xla 2.9 has and surestep hasn't yet: asking for it is an error that names it, rather than something that pretends."""

from __future__ import annotations

import dis
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

MODULES = frozenset(
    """torch_xla.core.dynamo_bridge torch_xla.core.xla_builder torch_xla.core.xla_op_registry torch_xla.debug.frame_parser_util
    torch_xla.debug.graph_counter_plugin torch_xla.debug.metrics_compare_utils torch_xla.debug.metrics_saver torch_xla.debug.model_comparator
    torch_xla.distributed.data_parallel torch_xla.distributed.fsdp torch_xla.distributed.spmd
    torch_xla.distributed.zero_redundancy_optimizer torch_xla.experimental.assume_pure torch_xla.experimental.custom_kernel torch_xla.experimental.distributed_checkpoint
    torch_xla.experimental.eager torch_xla.experimental.gradient_accumulation torch_xla.experimental.mark_pattern_utils torch_xla.experimental.pallas_kernels
    torch_xla.experimental.pjrt torch_xla.experimental.pjrt_backend torch_xla.experimental.plugins torch_xla.experimental.quantized torch_xla.experimental.scan
    torch_xla.experimental.scan_layers torch_xla.experimental.spmd_fully_sharded_data_parallel torch_xla.experimental.tpu torch_xla.experimental.while_loop
    torch_xla.experimental.xla_quantized_matmul torch_xla.stablehlo torch_xla.tf_saved_model_integration torch_xla.utils.closures torch_xla.utils.keyd_queue
    torch_xla.utils.gcsfs""".split()
)

NAMES = {
    "torch_xla": "backends compile experimental_compile set_custom_compile_options stablehlo _found_libtpu",
    "torch_xla._XLAC": """_flash_attention_backward _flash_attention_forward _flash_attention_position_ids_backward _flash_attention_position_ids_forward
        _get_xla_tensors_dot _get_xla_tensors_hlo _get_xla_tensors_text _get_graph_hash _get_stablehlo _mark_dynamic _xla_mark_bounded_dynamic _xla_mark_sharding
        _xla_mark_sharding_ _xla_all_reduce _xla_all_gather _xla_warm_up_cache _run_cached_graph OpSharding ShardingType XlaShardingSpec""",
    "torch_xla.core.functions": "nms",
    "torch_xla.core.xla_model": "CoalescingBuckets all_reduce_bucketized_gradients check_view_sharing get_stablehlo get_stablehlo_bytecode recv send",
    "torch_xla.distributed.parallel_loader": "BatchTracker PerDeviceQueue",
    "torch_xla.distributed.xla_backend": "ProcessGroupXla",
    "torch_xla._internal.tpu": "get_tpu_env get_tpu_type get_worker_ips task_id worker_id",
    "torch_xla.experimental": "compile eager_mode eager_mode_context is_eager_mode",
    "torch_xla.runtime": "get_master_ip global_runtime_device_attributes use_spmd",
}


def getter(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: its submodules, imported when they are asked for; an error for the rest."""
    later = frozenset(NAMES.get(module, "").split())

    def __getattr__(name: str) -> Any:
        full = f"{module}.{name}"
        if not name.startswith("__") and hasattr(sys.modules[f"surestep.{module}"], "__path__") and importlib.util.find_spec(f"surestep.{full}"):
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
    return f"{full} isn't in surestep yet: torch_xla has it, surestep's drop-in for one process with one device doesn't"
