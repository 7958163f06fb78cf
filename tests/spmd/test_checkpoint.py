"""Checkpoints of tensors that are split over the devices."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

import surestep
import surestep.torch_xla.distributed.spmd as xs
from surestep.torch_xla.experimental.distributed_checkpoint import CheckpointManager, SPMDLoadPlanner, SPMDSavePlanner, prime_optimizer
from surestep.torch_xla.experimental.distributed_checkpoint._helpers import _CpuShards, _sharded_cpu_state_dict

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def split(devices: int, first: int) -> Model:
    mesh = xs.Mesh(np.arange(devices), (first, devices // first), ("x", "y"))
    model = Model().to("xla")
    xs.mark_sharding(model.up.weight, mesh, ("x", "y"))
    xs.mark_sharding(model.up.bias, mesh, ("y",))
    xs.mark_sharding(model.down.weight, mesh, (None, None))
    return model


def same(a, b):
    for (name, mine), theirs in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(mine.cpu(), theirs.cpu()), name


save = functools.partial(dcp.save, no_dist=True)
load = functools.partial(dcp.load, no_dist=True)


def test_each_part_is_written_once_and_read_on_another_mesh(devices, tmp_path):
    model = split(devices, 1)
    planner = SPMDSavePlanner()
    save(model.state_dict(), checkpoint_id=tmp_path, planner=planner)
    assert set(planner.sharded_state_dict) == ({"up.weight", "up.bias"} if devices > 1 else set())
    written = [item for item in planner.plan.items if item.index.fqn == "up.weight"]
    assert len(written) == devices
    other = split(devices, devices)
    specs = [parameter.sharding_spec for parameter in other.parameters()]
    load(other.state_dict(), checkpoint_id=tmp_path, planner=SPMDLoadPlanner())
    same(model, other)
    assert [parameter.sharding_spec for parameter in other.parameters()] == specs


def test_pytorch_reads_it_and_is_read(devices, tmp_path):
    model = split(devices, devices)
    save(model.state_dict(), checkpoint_id=tmp_path / "a", planner=SPMDSavePlanner())
    plain = Model()
    load(plain.state_dict(), checkpoint_id=tmp_path / "a")
    same(model, plain)
    new = Model()
    save(new.state_dict(), checkpoint_id=tmp_path / "b")
    load(model.state_dict(), checkpoint_id=tmp_path / "b", planner=SPMDLoadPlanner())
    same(model, new)


def test_copies_on_the_host_are_written_as_the_tensors(devices, tmp_path):
    model = split(devices, devices)
    copies = _sharded_cpu_state_dict({"model": model.state_dict()})
    assert isinstance(copies["model"]["up.weight"], _CpuShards) == (devices > 1)
    assert copies["model"]["down.weight"].device.type == "cpu"
    before = model.up.weight.cpu()
    with torch.no_grad():
        model.up.weight.zero_()
    save(copies, checkpoint_id=tmp_path, planner=SPMDSavePlanner())
    load({"model": model.state_dict()}, checkpoint_id=tmp_path, planner=SPMDLoadPlanner())
    assert torch.equal(model.up.weight.cpu(), before)


def test_what_does_not_fit_is_an_error(devices, tmp_path):
    save({"up.weight": torch.ones(4, 4)}, checkpoint_id=tmp_path)
    if devices > 1:
        with pytest.raises(CheckpointException, match=r"up.weight has the shape \[4, 4\] in the checkpoint, and \[32, 16\] here"):
            load({"up.weight": split(devices, 1).up.weight}, checkpoint_id=tmp_path, planner=SPMDLoadPlanner())
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: up"):
        load({"up.bias": split(devices, 1).up.bias}, checkpoint_id=tmp_path, planner=SPMDLoadPlanner())


def train(model, optimizer, steps):
    for step in range(steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        with surestep.step():
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).square().mean().backward()
            optimizer.step()


def test_training_goes_on_from_a_checkpoint(devices, tmp_path):
    model = split(devices, devices)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    train(model, optimizer, 3)
    manager = CheckpointManager(tmp_path, save_interval=10)
    assert manager.save_async(10, {"model": model.state_dict(), "optim": optimizer.state_dict()})
    manager.join()
    train(model, optimizer, 3)

    again = split(devices, 1)
    restored = torch.optim.AdamW(again.parameters(), 1e-2)
    before = again.up.weight.cpu()
    prime_optimizer(restored)
    assert torch.equal(again.up.weight.cpu(), before)
    state = {"model": again.state_dict(), "optim": restored.state_dict()}
    manager = CheckpointManager(tmp_path, save_interval=10)
    manager.restore(max(manager.all_steps()), state)
    again.load_state_dict(state["model"])
    restored.load_state_dict(state["optim"])
    train(again, restored, 3)
    for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu())


def test_so_many_are_kept(devices, tmp_path):
    manager = CheckpointManager(tmp_path, save_interval=10, max_to_keep=2)
    state = {"w": torch.ones(2, device="xla")}
    assert [manager.save(step, state) for step in (0, 1, 10, 20)] == [True, False, True, True]
    assert manager.all_steps() == [10, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "20"]
    assert manager.save(21, state, force=True)
    assert CheckpointManager(tmp_path, save_interval=10).all_steps() == [20, 21]
    with pytest.raises(ValueError, match=r"no whole checkpoint of step 10, but of \[20, 21\]"):
        manager.restore(10, state)
    with pytest.raises(ValueError, match="save_interval is 0, expected at least 1"):
        CheckpointManager(tmp_path, save_interval=0)


def test_a_failed_save_is_said_at_the_next(devices, tmp_path):
    manager = CheckpointManager(tmp_path, save_interval=1)
    (tmp_path / "1").write_text("in the way")
    (tmp_path / "1").chmod(0)
    state = {"w": torch.ones(2, device="xla"), "f": lambda: None}  # a function can't be pickled
    manager.save_async(2, state)
    with pytest.raises(CheckpointException, match=r"pickle|lambda"):
        manager.join()
    (tmp_path / "1").unlink()


def test_one_that_was_broken_off_is_left_out(devices, tmp_path):
    """A process is killed in the middle of its second save."""
    script = f"""
        import os, torch
        import surestep
        from surestep.torch_xla.experimental.distributed_checkpoint import CheckpointManager
        manager = CheckpointManager({str(tmp_path)!r}, save_interval=1)
        manager.save(1, {{"w": torch.full((4,), 1.0, device="xla")}})
        manager._files.pipe_file = lambda *_: os.kill(os.getpid(), {int(signal.SIGKILL)})
        manager.save(2, {{"w": torch.full((4,), 2.0, device="xla")}})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=os.environ, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (Path(tmp_path) / "2").exists()
    with pytest.warns(UserWarning, match="2 is no whole checkpoint"):
        manager = CheckpointManager(tmp_path, save_interval=1)
    assert manager.all_steps() == [1]
    state = {"w": torch.zeros(4, device="xla")}
    manager.restore(1, state)
    assert state["w"].tolist() == [1.0] * 4


def test_sigterm_makes_the_next_step_due(devices, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        manager = CheckpointManager(tmp_path, save_interval=100)
        assert not manager.should_save(3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert manager.should_save(3)
    finally:
        signal.signal(signal.SIGTERM, before)
    quiet = CheckpointManager(tmp_path, save_interval=100, chkpt_on_preemption=False)
    assert not quiet.should_save(3)
    with pytest.raises(RuntimeError, match="chkpt_on_preemption=False"):
        quiet.reached_preemption(3)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, functools.partial(torch.optim.SGD, momentum=0.9)], ids=["AdamW", "SGD"])
@pytest.mark.parametrize("where", [None, "cpu"])
def test_loaded_state_of_an_optimizer_lies_as_its_parameters(devices, tmp_path, kind, where):
    """As state that its steps make does: no device holds the whole of it after a checkpoint was read."""
    mesh = xs.get_1d_mesh("data")

    def made(spec):
        parameter = nn.Parameter(torch.ones(8, 8 * devices, device="xla"))
        xs.mark_sharding(parameter, mesh, spec)
        return parameter, kind([parameter], lr=0.1)

    def stepped(parameter, optimizer):
        with surestep.step():
            (parameter * torch.arange(8.0 * devices, device="xla")).square().sum().backward()
            optimizer.step()
        return parameter.detach().cpu()

    parameter, optimizer = made((None, "data"))
    stepped(parameter, optimizer)
    torch.save({"parameter": parameter.detach(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", map_location=where)
    again, other = made((None, "data"))
    with torch.no_grad():
        again.copy_(state["parameter"])
    other.load_state_dict(state["optimizer"])
    parameter.grad = None

    def lie():
        return {value.sharding_spec for value in other.state[again].values() if isinstance(value, torch.Tensor) and value.ndim}

    assert lie() == {again.sharding_spec} == {parameter.sharding_spec}
    torch.testing.assert_close(stepped(again, other), stepped(parameter, optimizer))
    assert lie() == {again.sharding_spec}
