"""The small modules: runtime, utils, serialization, checkpoint, test_utils, profiler, tpu."""

import gc
import os
import sys
import threading
import unittest

import pytest
import torch

from surestep.torch_xla import _XLAC, backends
from surestep.torch_xla import runtime as xr
from surestep.torch_xla._internal import jax_workarounds, tpu
from surestep.torch_xla.core import xla_model as xm
from surestep.torch_xla.debug import metrics as met
from surestep.torch_xla.debug import profiler as xp
from surestep.torch_xla.experimental import deprecation
from surestep.torch_xla.experimental.callback import on_ready_callback
from surestep.torch_xla.test import test_utils as tu
from surestep.torch_xla.utils import dlpack
from surestep.torch_xla.utils import serialization as xser
from surestep.torch_xla.utils import utils as xu
from surestep.torch_xla.utils.checkpoint import checkpoint


def test_runtime():
    assert xr.device_type() == "CPU"
    assert [xr.world_size(), xr.process_count(), xr.local_process_count(), xr.global_device_count(), xr.addressable_device_count()] == [
        1
    ] * 5
    assert [xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xr.host_index()] == [0] * 4
    assert not xr.is_spmd() and xr.using_pjrt() and xr.is_bf16_supported()
    assert xr.runtime_device_attributes("xla:0")["name"] == "CPU:0"


def test_the_platform_cant_be_changed_once_in_use(monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    torch.ones(1, device="xla").item()
    with pytest.raises(RuntimeError, match="in use already, as CPU"):
        xr.set_device_type("TPU")
    xr.set_device_type("CPU")
    assert xr.device_type() == "CPU"


def test_the_cache(tmp_path):
    import jax

    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")}
    try:
        xr.initialize_cache(str(tmp_path))
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_no_tpu_here(monkeypatch):
    assert tpu.num_available_chips() == 0 and tpu.num_available_devices() == 1
    monkeypatch.setenv("CPU_NUM_DEVICES", "3")
    assert tpu.num_available_devices() == 3
    with pytest.raises(RuntimeError, match="no TPU here"):
        tpu.version()


def test_environment(monkeypatch):
    monkeypatch.setenv("A_NUMBER", "3")
    monkeypatch.setenv("A_FLAG", "0")
    assert xu.getenv_as("A_NUMBER", int) == 3 and xu.getenv_as("A_FLAG", bool) is False and xu.getenv_as("NOTHING", int, 7) == 7
    assert xu.check_env_flag("A_NUMBER") is False and xu.check_env_flag("NOTHING", "1") is True


def test_generators():
    samples = xu.SampleGenerator((torch.ones(2), 1), 3)
    assert len(samples) == 3 and [label for _, label in samples] == [1, 1, 1] == [label for _, label in samples]
    batches = xu.FnDataGenerator(lambda x: x * 2, 4, torch.ones, dims=[3], count=2)
    assert len(batches) == 2 and [(data.shape, target.sum().item()) for data, target in batches] == [((4, 3), 24.0)] * 2


def test_timed():
    said = []
    assert xu.timed(lambda: 5, "took ", said.append) == 5
    assert said[0].startswith("took ") and said[0].endswith("ms")


def test_serialization(tmp_path):
    path = str(tmp_path / "checkpoint")
    shared = torch.arange(3.0, device="xla")
    xser.save({"weights": [shared, shared], "epoch": 3, "host": torch.ones(1)}, path)
    assert sorted(file.name for file in (tmp_path / "checkpoint.tensors").iterdir()) == ["tensor_0.pt"]
    found = xser.load(path)
    assert found["weights"][0] is found["weights"][1] and found["weights"][0].tolist() == [0, 1, 2]
    assert (found["epoch"], found["host"].tolist()) == (3, [1])


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation(reentrant):
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).to("xla")
    x = torch.ones(2, 4, device="xla", requires_grad=True)
    layer(x).sum().backward()
    expected = x.grad.clone()
    x.grad = None
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_printed_updates(capsys):
    tu.print_training_update("xla:0", 3, 0.5, 10.0, 12.0, epoch=1)
    tu.print_test_update("xla:0", 97.5)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("| Training Device=xla:0 Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=12.00 Time=")
    assert second.startswith("| Test Device=xla:0 Accuracy=97.50 Time=")


def test_summary_writer():
    class Writer(list):
        def add_scalar(self, *given):
            self.append(given)

    writer = Writer()
    tu.write_to_summary(writer, 5, {"loss": 0.5})
    assert writer == [("loss", 0.5, 5)]
    tu.write_to_summary(writer, 6, write_xla_metrics=True)
    assert ("xla/fallbacks", pytest.approx(0, abs=1e9), 6) in writer
    tu.write_to_summary(None, 5, {"loss": 0.5})
    assert tu.get_summary_writer(None) is None


def test_profiles(tmp_path, metrics):
    xp.start_trace(str(tmp_path))
    with xp.StepTrace("train", step_num=1), xp.Trace("forward"):
        x = torch.ones(2, device="xla") + 1
    xp.stop_trace()
    assert x.tolist() == [2, 2] and metrics().to_dict()["boundaries"] == {"sync": 1}
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    with pytest.raises(RuntimeError, match="isn't a server of this process"):
        xp.trace("localhost:1", str(tmp_path))


class Holder:
    def __init__(self, *values):
        self.values = values


def test_each_instance_in_a_nesting_once():
    held = Holder(1, "a", 2.5)
    held.itself = held
    nesting = {"key": [held, (1, 7)], 3: held}

    def is_chosen(value):
        return isinstance(value, (int, str, float))

    seen = []
    xu.for_each_instance(nesting, is_chosen, seen.append)
    assert seen == ["key", 1, "a", 2.5, 7, 3]
    new = xu.for_each_instance_rewrite(nesting, is_chosen, lambda value: value * 2)
    assert list(new) == ["keykey", 6] and new["keykey"][1] == (2, 14) and new[6] is new["keykey"][0]
    assert new[6].values == (2, "aa", 5.0) and held.values == (1, "a", 2.5)


def test_a_wrapper_says_what_is_sent():
    class Packed(xu.DataWrapper):
        def __init__(self, pack):
            self.pack = pack

        def get_tensors(self):
            return [self.pack.data, self.pack.sorted_indices]

        def from_tensors(self, tensors):
            return torch.nn.utils.rnn.PackedSequence(tensors[0], self.pack.batch_sizes, tensors[1], None)

    pack = torch.nn.utils.rnn.pack_padded_sequence(torch.rand(3, 2, 1), [3, 1])
    (sent,) = xm.send_cpu_data_to_device([Packed(pack)], "xla")
    assert sent.data.device.type == "xla" and sent.batch_sizes.device.type == "cpu" and sent.sorted_indices is None
    torch.testing.assert_close(sent.data.cpu(), pack.data)


def test_small_ones(capsys, monkeypatch):
    folder = xu.TmpFolder()
    path = folder.name
    assert os.path.isdir(path)
    del folder
    gc.collect()
    assert not os.path.exists(path)
    calls = []
    lazy = xu.LazyProperty(lambda: calls.append(1) or 5)
    assert (lazy.value, lazy.value, calls) == (5, 5, [1])
    assert xu.shape([(1, 2, 3), [4, 5, 6]]) == [2, 3] and xu.shape(()) == [0] and xu.shape(1) == []
    with pytest.raises(AssertionError, match="different shapes"):
        xu.shape([(1, 2), (1,)])
    assert xu.flatten_nested_tuple((1, [2, (3,)], ())) == (1, 2, 3) and xu.list_copy_append((1,), 2) == [1, 2]
    assert xu.parallel_work(2, lambda a, b: a + b, [1, 2], [10, 20]) == [11, 22]
    assert len(set(xu.get_free_tcp_ports(3))) == 3
    assert xu.timed(lambda: 7, "seven ", printfn=None) == 7
    monkeypatch.setenv("DEBUG", "1")
    with xu.TimedScope("block ", printfn=None), xu.TimedScope("failed ") as failed:
        failed.set_error(ValueError())
    said = capsys.readouterr().err
    assert said.startswith("block ") and said.endswith("ms\n") and "seven" not in said and "failed" not in said


@pytest.mark.parametrize("expected", [0, 3])
def test_a_test_in_a_process_of_its_own(expected):
    @tu.mp_test
    def ends(case, code):
        os._exit(code)

    case = unittest.TestCase()
    if expected:
        with pytest.raises(AssertionError):
            ends(case, expected)
    else:
        assert ends(case, 0) == 0


def test_products_are_precise_already():
    backends.set_mat_mul_precision("highest")
    assert backends.get_mat_mul_precision() == _XLAC._xla_get_mat_mul_precision() == "highest"
    for lower in ("high", "default"):
        with pytest.raises(NotImplementedError, match=r"torch\.autocast\('xla'\)"):
            backends.set_mat_mul_precision(lower)
    with pytest.raises(ValueError, match="not 'low'"):
        backends.set_mat_mul_precision("low")


def test_what_waits_for_a_tensor_is_called():
    ready, found = threading.Event(), []
    tensor = torch.ones(3, device="xla") * 2
    on_ready_callback(tensor, lambda given: (found.append(given), ready.set()))
    assert ready.wait(10) and found[0] is tensor


def test_devices_by_the_private_names():
    assert _XLAC._xla_real_devices(["xla:0"]) == xm._DEVICES.value == xm.xla_replication_devices(["xla:0"]) == ["CPU:0"]
    assert _XLAC._xla_get_all_devices() == ["CPU:0"] and _XLAC._xla_runtime_is_initialized() and xm.xla_device_kind() == "cpu"
    with pytest.raises(RuntimeError, match="2 devices, and this process has 1"):
        xm.xla_replication_devices(["xla:0", "xla:1"])
    (sent,) = _XLAC._xla_tensors_from_aten([torch.ones(2)], ["xla:0"])
    assert sent.device == torch.device("xla:0")


def test_jax_is_ready_before_it_is_used():
    import jax

    jax_workarounds.jax_import_guard()
    assert jax_workarounds.requires_jax(lambda: jax.devices()[0].platform)() == "cpu"


def test_tensors_that_share_their_memory_are_found_on_any_device():
    for device in ("xla", "cpu"):
        whole = torch.rand(16, device=device)
        for views in ([whole[:10], whole[6:]], Holder(whole, whole.view(4, 4))):
            with pytest.raises(RuntimeError, match="two tensors share their memory"):
                xm.check_view_sharing(views)
        xm.check_view_sharing([whole, whole, torch.empty(0, device=device), torch.empty(0, device=device)])


def test_programs_are_counted_whatever_is_cleared():
    (torch.ones(3, device="xla") * 3.25).tolist()
    before = xr.get_num_cached_compilation_graph()
    met.clear_all()
    assert xr.get_num_cached_compilation_graph() == before > 0
    (torch.ones(3, device="xla") * 3.25 - torch.arange(3, device="xla").cos()).tolist()
    assert xr.get_num_cached_compilation_graph() == before + 1


def test_capsules():
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    again = dlpack.from_dlpack(dlpack.to_dlpack(x.t()))
    again.add_(1)
    assert again.device == x.device and again.tolist() == [[1, 4], [2, 5], [3, 6]] and x.tolist() == [[0, 1, 2], [3, 4, 5]]
    for of_others in (torch.utils.dlpack.to_dlpack(torch.arange(3.0)), torch.arange(3.0), torch.arange(3.0).numpy()):
        assert torch.equal(dlpack.from_dlpack(of_others), torch.arange(3.0, device="xla"))
    assert torch.equal(torch.utils.dlpack.from_dlpack(dlpack.to_dlpack(x)), x.cpu())
    with pytest.raises(TypeError, match="takes an xla tensor"):
        dlpack.to_dlpack(torch.ones(1))


def new_name(x):
    return x + 1


def test_old_names_say_so(caplog):
    module = sys.modules[__name__]

    @deprecation.mark_deprecated(new_name, extra_msg="Soon.")
    def old_function(x):
        return x

    deprecation.register_deprecated(module, new_name, "old_name")
    assert (old_function(1), module.old_name(2)) == (2, 3)
    del module.old_name
    assert [record.getMessage() for record in caplog.records] == [
        f"old_function is an old name: write {__name__}.new_name. Soon.",
        f"{__name__}.old_name is an old name: write {__name__}.new_name.",
    ]
