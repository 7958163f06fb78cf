"""Every torch_xla name that public scripts use is there, or says that it isn't yet."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from surestep import _absent
from surestep.torch_xla import _later

# what one process with one device needs, of the names counted over public scripts
THERE = {
    "": """__version__ _XLAC _internal core debug device distributed launch sync step manual_seed devices real_devices device_count
        runtime amp xm""",
    "_XLAC": """_xla_sync_multi _set_ir_debug _get_ir_debug _xla_get_default_device _xla_get_tensor_id _xla_metrics_report
        _xla_real_devices _xla_get_all_devices _xla_runtime_is_initialized _xla_tensors_from_aten""",
    "_internal.jax_workarounds": "jax_import_guard requires_jax",
    "_internal.pjrt": "run_multiprocess spawn",
    "_internal.tpu": "num_available_devices version",
    "amp": "GradScaler autocast syncfree",
    "amp.autocast_mode": "autocast",
    "amp.grad_scaler": "GradScaler",
    "amp.syncfree": "SGD Adam AdamW GradScaler",
    "amp.syncfree.adam": "Adam",
    "amp.syncfree.adamw": "AdamW",
    "amp.syncfree.grad_scaler": "GradScaler",
    "amp.syncfree.sgd": "SGD",
    "backends": "get_mat_mul_precision set_mat_mul_precision",
    "core.functions": "all_gather all_reduce",
    "core.xla_builder": "Op Type call_jax",
    "core.xla_op_registry": "register",
    "core.xla_env_vars": "HOST_WORLD_SIZE HOST_ORDINAL TPU_NUM_DEVICES PJRT_DEVICE",
    "core.xla_model": """xla_device mark_step rendezvous get_ordinal xrt_world_size all_reduce save master_print is_master_ordinal
        optimizer_step REDUCE_SUM
        all_gather mesh_reduce set_rng_state add_step_closure _maybe_convert_to_cpu get_local_ordinal wait_device_ops get_rng_state
        reduce_gradients
        send_cpu_data_to_device REDUCE_MAX broadcast_master_param collective_broadcast xla_real_devices RateTracker ToXlaTensorArena
        _fetch_gradients
        reduce_scatter REDUCE_MIN all_to_all get_xla_supported_devices get_memory_info set_replication xla_device_hw REDUCE_AND REDUCE_MUL
        REDUCE_OR
        is_xla_tensor optimization_barrier_ send recv all_reduce_bucketized_gradients CoalescingBuckets check_view_sharing
        xla_replication_devices xla_device_kind _DEVICES""",
    "debug.metrics": """metrics_report short_metrics_report counter_names counter_value metric_names metric_data clear_all
        clear_counters clear_metrics
        executed_fallback_ops""",
    "debug.model_comparator": "configure save compare",
    "debug.profiler": "start_server Trace StepTrace trace trace_detached",
    "distributed.data_parallel": "DataParallel",
    "distributed.fsdp": "XlaFullyShardedDataParallel checkpoint_module consolidate_sharded_model_checkpoints",
    "distributed.fsdp.utils": "checkpoint_module apply_xla_patch_to_nn_linear",
    "distributed.fsdp.wrap": "always_wrap_policy recursive_wrap size_based_auto_wrap_policy transformer_auto_wrap_policy",
    "distributed.parallel_loader": "MpDeviceLoader ParallelLoader PerDeviceLoader",
    "distributed.xla_backend": "",
    "distributed.zero_redundancy_optimizer": "ZeroRedundancyOptimizer",
    "distributed.xla_multiprocessing": "spawn MpModelWrapper MpSerialExecutor",
    "experimental.custom_kernel": "FlashAttention flash_attention gmm tgmm GMM make_kernel_from_pallas jax_import_guard",
    "experimental.assume_pure": "assume_pure PureModule",
    "experimental.callback": "on_ready_callback",
    "experimental.deprecation": "deprecated mark_deprecated register_deprecated",
    "experimental.fori_loop": "fori_loop while_loop _xla_while_loop_wrapper",
    "experimental.gradient_accumulation": "gradient_accumulation",
    "experimental.pjrt_backend": "",
    "experimental.scan": "scan tree_flatten_none value_and_grad_partitioned",
    "experimental.scan_layers": "scan_layers",
    "experimental.while_loop": "while_loop",
    "runtime": """world_size global_ordinal global_runtime_device_count initialize_cache device_type host_index local_ordinal
        is_spmd process_count
        set_device_type process_index global_device_count local_device_count addressable_device_count using_pjrt""",
    "test.test_utils": "close_summary_writer get_summary_writer now print_training_update write_to_summary print_test_update mp_test",
    "utils.checkpoint": "checkpoint",
    "utils.dlpack": "from_dlpack to_dlpack",
    "utils.serialization": "TensorReference load save",
    "utils.utils": """getenv_as SampleGenerator FnDataGenerator DataWrapper TmpFolder TimedScope for_each_instance
        for_each_instance_rewrite get_free_tcp_ports""",
}


@pytest.mark.parametrize("module", THERE)
def test_it_is_there(module):
    found = importlib.import_module(f"surestep.torch_xla.{module}".rstrip("."))
    missing = [name for name in THERE[module].split() if not hasattr(found, name)]
    assert missing == []


@pytest.mark.parametrize("module", _absent.NAMES)
def test_it_says_that_it_isnt_there_yet(module):
    found = importlib.import_module(f"surestep.{module}")
    for name in _absent.NAMES[module]:
        assert not hasattr(found, name)
        with pytest.raises(AttributeError, match=rf"{module}\.{name} isn't in surestep yet"):
            getattr(found, name)


def test_what_is_imported_from_a_module_says_so_too():
    with pytest.raises(ImportError, match=r"torch_xla\.runtime\.get_master_ip isn't in surestep yet"):
        from surestep.torch_xla.runtime import get_master_ip  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        from surestep.torch_xla.runtime import nonsense  # noqa: F401


def test_modules_say_so_too():
    code = """
import json, sys
from surestep.cli.finder import install
install()
found = {}
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError as error:
        found[name] = str(error)
print(json.dumps(found))
"""
    names = [*sorted(_absent.MODULES), "torch_xla.stablehlo.exporter", "torch_xla.nonsense"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found.pop("torch_xla.nonsense") == "No module named 'torch_xla.nonsense'"
    assert set(found) == set(names) - {"torch_xla.nonsense"}
    # a parent that isn't there is named before its child
    assert found.pop("torch_xla.stablehlo.exporter").startswith("torch_xla.stablehlo isn't in surestep yet")
    assert all(text.startswith(f"{name} isn't in surestep yet") for name, text in found.items())


def test_nothing_is_both_there_and_not():
    for module, names in _absent.NAMES.items():
        there = THERE.get(module.removeprefix("torch_xla").removeprefix("."), "").split()
        assert not set(names) & set(there)
    for module in _absent.MODULES:
        assert importlib.util.find_spec(f"surestep.{module}") is None


def later():
    return [*_absent.MODULES, *(f"{module}.{name}" for module, names in _absent.NAMES.items() for name in names)]


def test_what_works_in_their_place_is_said():
    with pytest.raises(ImportError, match=r"torch_xla.experimental.gru isn't in surestep yet.* Now: torch.nn.GRU runs on the device"):
        _later.check_module("torch_xla.experimental.gru")
    without = {name for name in later() if not _absent.instead_of(name)}
    assert without == {
        "torch_xla._found_libtpu",
        *("torch_xla.experimental.mark_pattern_utils", "torch_xla.tf_saved_model_integration", "torch_xla.utils.gcsfs"),
    }


@pytest.mark.parametrize("beginning", _absent.INSTEAD)
def test_what_is_said_is_there(beginning):
    assert any(name.startswith(beginning) for name in later())
    for name in re.findall(r"`(\S+?)`", _absent.INSTEAD[beginning]):
        module, _, attribute = (name if name.startswith("surestep") else f"surestep.{name}").rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_of_the_private_module_the_public_ones_are_named():
    from surestep.torch_xla import _XLAC

    with pytest.raises(AttributeError, match=r"has no attribute '_xla_nonsense': of torch_xla's private C\+\+ module .* torch_xla.runtime"):
        _XLAC._xla_nonsense
