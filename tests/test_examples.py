"""Each example runs, and is as many programs and runs as it says."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"

RUN = """
import json, sys
from surestep.cli.run import run_program
code = run_program(tuple(sys.argv[1:]), None, summary=False)
from surestep.observe.metrics import metrics
print(json.dumps({"code": code, **metrics().to_dict()}))
"""


def run(example, *options, cwd):
    """What an example has printed, and its metrics."""
    done = subprocess.run([sys.executable, "-c", RUN, EXAMPLES / example, *options], capture_output=True, text=True, cwd=cwd)
    *lines, found = done.stdout.splitlines()
    found = json.loads(found)
    assert found["code"] == 0, done.stderr
    assert found["fallbacks"] == []
    return lines, found


def test_digits_counted(tmp_path):
    """Three steps: one program, three runs. Then one evaluation."""
    _, found = run("digits.py", "--epochs", "1", "--batch-size", "479", cwd=tmp_path)
    assert (found["steps"], found["programs"], found["runs"]) == (3, 2, 4)
    assert found["boundaries"] == {"end of step()": 3, "a value was read": 1}
    assert [place["count"] for place in found["implicit_boundaries"]] == [1]


def test_digits_learns(tmp_path):
    lines, found = run("digits.py", cwd=tmp_path)
    assert float(lines[0].split(": ")[1].split("%")[0]) >= 97
    assert (found["steps"], found["programs"], found["runs"]) == (176, 2, 177)
    state = torch.load(tmp_path / "digits.pt", weights_only=True)
    assert state["0.weight"].shape == (16, 1, 3, 3) and {value.device.type for value in state.values()} == {"cpu"}
    assert state["1.num_batches_tracked"].item() == 176


def test_loader(tmp_path):
    """Three steps: one program, three runs, one read at the end."""
    lines, found = run("loader.py", "--epochs", "1", "--samples", "96", cwd=tmp_path)
    assert (found["steps"], found["programs"], found["runs"], found["transfers_out"]) == (3, 1, 3, 1)
    assert found["implicit_boundaries"] == []
    assert lines[0].startswith("epoch 0: loss ")


def test_loader_learns(tmp_path):
    lines, found = run("loader.py", cwd=tmp_path)
    losses = [float(line.split("loss ")[1]) for line in lines]
    assert losses[-1] < 0.02 and losses == sorted(losses, reverse=True)
    assert (found["steps"], found["programs"], found["runs"]) == (96, 1, 96)


def cpu_eager(steps):
    """What the bug report's loop gives on the CPU."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(16, 32), torch.ones(16, 1)
    before = model[0].weight.detach().clone()
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (model[0].weight.detach() - before).abs().max().item(), loss.item()


@pytest.mark.parametrize("options", [(), ("--fixed",)])
def test_missing_sync_trains_as_on_the_cpu(tmp_path, options):
    lines, found = run("missing_sync.py", *options, cwd=tmp_path)
    change, loss = (float(part.split(": ")[1]) for part in lines[0].split(", "))
    assert (change, loss) == pytest.approx(cpu_eager(10), abs=2e-6)
    assert found["steps"] == 10


def test_missing_sync_counted(tmp_path):
    """Three steps: two programs (the first builds what the loop then reuses), one run a step, and one for what came before."""
    _, found = run("missing_sync.py", "--steps", "3", cwd=tmp_path)
    assert (found["programs"], found["runs"]) == (2, 4)
    assert found["implicit_boundaries"][0]["cause"] == "end of optimizer.step()"


def test_compiled(tmp_path):
    """The whole batches' step and the smaller last one's: a program each, recorded twice, and once more while the optimizer has no state;
    the rest is replayed.
    """
    lines, found = run("compiled.py", "--epochs", "3", cwd=tmp_path)
    assert (found["steps"], found["replays"]) == (87, 87 - 5)
    assert found["implicit_boundaries"] == []
    assert float(lines[-1].split("right ")[1].rstrip("%")) > 85


@pytest.mark.parametrize(("devices", "parallel"), [("4", "data"), ("4", "fsdp"), ("4", "tensor")])
def test_spmd_losses_are_those_of_one_device(tmp_path, monkeypatch, devices, parallel):
    """Four steps: one program, four runs, one read of a loss on the way and one at the end."""
    monkeypatch.setenv("CPU_NUM_DEVICES", "1")
    expected, _ = run("spmd.py", "--steps", "4", cwd=tmp_path)
    monkeypatch.setenv("CPU_NUM_DEVICES", devices)
    lines, found = run("spmd.py", "--steps", "4", "--parallel", parallel, cwd=tmp_path)
    assert (found["steps"], found["programs"], found["runs"], found["transfers_out"]) == (4, 1, 4, 2)
    assert found["implicit_boundaries"] == []
    assert lines[-1].endswith("over 4 device(s)")
    for line, before in zip(lines, expected, strict=True):
        assert float(line.split("loss ")[1].split(",")[0]) == pytest.approx(float(before.split("loss ")[1].split(",")[0]), abs=2e-5)


@pytest.mark.parametrize(
    ("example", "starters"),
    [("launch.py", {"launch", "torchrun"}), ("ddp.py", {"launch", "torchrun"}), ("fsdp.py", {"torchrun"}), ("zero.py", {"launch"})],
)
def test_processes_end_where_one_does(tmp_path, example, starters):
    """One process; two that `launch` starts; two that torchrun starts."""
    program = (sys.executable, "-m", "surestep", "run", EXAMPLES / example, "--epochs", "2", "--checkpoint")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    commands = {"alone": (program, "1"), "launch": (program, "2"), "torchrun": ((*torchrun, *program), "1")}
    states = {}
    for starter in ("alone", *sorted(starters)):
        command, devices = commands[starter]
        environ = {**os.environ, "CPU_NUM_DEVICES": devices}
        done = subprocess.run([*command, tmp_path / f"{starter}.pt"], capture_output=True, text=True, env=environ, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"trained by {1 if starter == 'alone' else 2} process(es)" in done.stdout
        states[starter] = torch.load(tmp_path / f"{starter}.pt", weights_only=True)
    for starter in starters:
        for name, value in states["alone"].items():
            torch.testing.assert_close(states[starter][name], value, rtol=1e-4, atol=1e-5)
