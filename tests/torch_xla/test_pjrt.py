"""Functions run in one process a device, with what they return; and the loop over a device of an older API."""

import os
import subprocess
import sys

import pytest
import torch

from surestep.torch_xla import runtime as xr
from surestep.torch_xla._internal import pjrt
from surestep.torch_xla.distributed.data_parallel import DataParallel


def test_one_process_runs_in_place():
    assert pjrt.run_multiprocess(divmod, 7, 2) == {0: (3, 1)}
    seen = []
    pjrt.spawn(lambda *given: seen.append(given), args=("x",))
    assert seen == [(0, "x")]


def test_what_each_of_several_returns():
    code = (
        "import os\nfrom surestep.torch_xla._internal.pjrt import run_multiprocess as run\nprint(run(os.getenv, 'LOCAL_RANK', default='?'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"CPU_NUM_DEVICES": "2"}, check=True, timeout=100
    )
    assert done.stdout == "{0: '0', 1: '1'}\n"


def test_a_device_in_use_is_said(monkeypatch):
    torch.ones(1, device="xla")
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    with pytest.raises(RuntimeError, match="to start 2 others"):
        pjrt.run_multiprocess(xr.global_ordinal)


def loop(model, loader, device, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for data, target in loader:
        optimizer.zero_grad()
        (model(data) - target).square().mean().backward()
        optimizer.step()
    context.getattr_or("epochs", list).append(device)
    return model.weight.detach().cpu(), len(context.epochs)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_loop_over_the_device(fixed):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    batches = [(torch.rand(size, 3), torch.rand(size, 1)) for size in (4, 4, 2, 4)]
    parallel = DataParallel(model)
    ((weight, _),) = parallel(loop, batches, fixed_batch_size=fixed)
    expected, _ = loop(model, batches[: 2 if fixed else 4], torch.device("cpu"), DataParallel(model)._context)
    torch.testing.assert_close(weight, expected)
    assert parallel(loop, [])[0][1] == 2 and parallel.devices == ["xla:0"]


def test_several_devices_are_several_processes():
    with pytest.raises(NotImplementedError, match=r"over 2 devices: replicas are one process each.*torch_xla\.launch"):
        DataParallel(torch.nn.Linear(1, 1), device_ids=["xla:0", "xla:1"])
