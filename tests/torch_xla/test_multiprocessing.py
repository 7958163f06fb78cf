"""launch and spawn run in place; more than one process is refused."""

import pytest
import torch

import surestep
from surestep.torch_xla import launch
from surestep.torch_xla.distributed import xla_multiprocessing as xmp


def called(start, **options):
    seen = []
    start(lambda *given: seen.append(given), args=(3, "x"), **options)
    return seen


def test_one_process_runs_in_place():
    assert called(launch) == called(xmp.spawn) == called(xmp.spawn, nprocs=1) == called(launch, start_method="fork") == [(0, 3, "x")]


def test_more_are_refused(monkeypatch):
    with pytest.raises(NotImplementedError, match=r"xmp\.spawn: nprocs=8.*one process with one device"):
        called(xmp.spawn, nprocs=8)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotImplementedError, match=r"torch_xla\.launch: WORLD_SIZE=2"):
        called(launch)


def test_several_devices_are_refused_unless_one_process_is_asked_for(monkeypatch):
    monkeypatch.setattr(xmp, "device_count", lambda: 4)
    with pytest.raises(NotImplementedError, match="each of 4 devices"):
        called(launch)
    assert called(launch, debug_single_process=True) == [(0, 3, "x")]


def test_an_error_is_the_functions_own():
    with pytest.raises(KeyError, match="mine"):
        launch(lambda index: {}["mine"])


def test_wrappers():
    model = xmp.MpModelWrapper(torch.nn.Linear(1, 1)).to("xla")
    assert model.weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 5) == 5


def test_a_process_group_is_refused():
    import surestep.torch_xla.distributed.xla_backend  # noqa: F401

    with pytest.raises(NotImplementedError, match="one process with one device"):
        torch.distributed.init_process_group("xla", init_method="xla://")
    assert not torch.distributed.is_initialized()


def test_seeds_are_the_devices():
    surestep.manual_seed(3, "xla:0")
    first = torch.rand(2, device="xla")
    surestep.manual_seed(3)
    assert torch.equal(torch.rand(2, device="xla"), first)
