"""The small modules: runtime, utils, serialization, checkpoint, test_utils, profiler, tpu."""

import pytest
import torch

from surestep.torch_xla import runtime as xr
from surestep.torch_xla._internal import tpu
from surestep.torch_xla.debug import profiler as xp
from surestep.torch_xla.test import test_utils as tu
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


def test_no_tpu_here():
    assert tpu.num_available_devices() == tpu.num_available_chips() == 0
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
