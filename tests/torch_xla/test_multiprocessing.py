"""launch and spawn in one process; tests/parallel has more."""

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


def test_a_device_in_use_is_said():
    torch.ones(1, device="xla")
    with pytest.raises(RuntimeError, match=r"the xla device is in use already in this process, which is to start 2 others"):
        called(xmp.spawn, nprocs=2)
    with pytest.raises(ValueError, match="at least one"):
        called(xmp.spawn, nprocs=0)


def test_one_process_for_several_devices_if_asked(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    torch.ones(1, device="xla")
    with pytest.raises(RuntimeError, match="to start 4 others"):
        called(launch)
    assert called(launch, debug_single_process=True) == [(0, 3, "x")]


def test_an_error_is_the_functions_own():
    with pytest.raises(KeyError, match="mine"):
        launch(lambda index: {}["mine"])


def test_no_function_is_said():
    with pytest.raises(TypeError, match="the function that each process calls, and this is 'train'"):
        launch("train")


def test_wrappers():
    model = xmp.MpModelWrapper(torch.nn.Linear(1, 1)).to("xla")
    assert model.weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: 5) == 5


def test_seeds_are_the_devices():
    surestep.manual_seed(3, "xla:0")
    first = torch.rand(2, device="xla")
    surestep.manual_seed(3)
    assert torch.equal(torch.rand(2, device="xla"), first)
