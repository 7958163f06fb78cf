"""Processes that torchrun starts: on two hosts, and again after one has died."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
HOSTS = pathlib.Path(__file__).parent / "hosts.sh"

PLACES = """
import json, os
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr

def main(index):
    dist.init_process_group("xla", init_method=os.environ["INIT"])
    rank = xr.global_ordinal()
    x, y = (torch.arange(3.0, device="xla") + rank for _ in range(2))
    dist.all_reduce(y)
    found = {
        "index": index,
        "local": [xr.local_ordinal(), xr.local_process_count(), xm.is_master_ordinal()],
        "global": [rank, xr.process_index(), xr.process_count(), xr.world_size(), dist.get_rank(), xm.is_master_ordinal(local=False)],
        "host": xr.host_index(),
        "sums": [xm.all_reduce("sum", x).tolist(), y.tolist()],
        "gathered": xm.all_gather(torch.tensor([rank], device="xla")).tolist(),
        "met": [payload.decode() for payload in xm.rendezvous("here", str(rank).encode())],
    }
    with open(f"{os.environ['OUT']}/{rank}.json", "w") as file:
        json.dump(found, file)

torch_xla.launch(main)
"""


@pytest.mark.parametrize(("each", "init"), [(1, "env://"), (2, "xla://")])
def test_two_hosts(tmp_path, each, init):
    (tmp_path / "places.py").write_text(PLACES)
    command = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", HOSTS)
    torchrun = (*TORCHRUN, "--nnodes=2", f"--nproc-per-node={each}", "--master-addr=10.0.0.1", "--master-port=29500")
    environ = {**os.environ, "INIT": init, "OUT": str(tmp_path)}
    try:
        done = subprocess.run(
            (*command, *torchrun, "-m", "surestep", "run", tmp_path / "places.py"), env=environ, capture_output=True, text=True, timeout=120
        )
    except FileNotFoundError as error:
        pytest.skip(f"network namespaces can't be had: {error}")
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"network namespaces can't be had: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    for rank in range(2 * each):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["local"] == [rank % each, each, rank % each == 0] and found["index"] == rank % each
        assert found["global"] == [rank, rank, 2 * each, 2 * each, rank, rank == 0] and found["host"] == rank // each
        total = sum(range(2 * each))
        assert found["sums"] == [[total + 2.0 * each * place for place in range(3)]] * 2
        assert found["gathered"] == list(range(2 * each)) and found["met"] == [str(other) for other in range(2 * each)]


TRAINING = """
import os
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

def main(index):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    path, begin = f"{os.environ['OUT']}/checkpoint.pt", 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["steps"]
    for number in range(begin, 6):
        torch.manual_seed(number)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        part = slice(xr.global_ordinal(), None, xr.world_size())
        with torch_xla.step():
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[part].to("xla")), y[part].to("xla")).backward()
            if number == 4 and xr.global_ordinal() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), 9)
            xm.optimizer_step(optimizer)
        if number % 2:
            xm.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": number + 1}, path)
    xm.master_print(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']} from {begin}: {model.weight.tolist()[0]}")

torch_xla.launch(main)
"""


def test_restarted_from_a_checkpoint(tmp_path):
    """A process dies in the first run; torchrun starts all of them again, and they go on to what no failure would have given."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    said = []
    for count, restarts in (("0", ("--max-restarts=1",)), ("-", ())):
        directory = tmp_path / count
        directory.mkdir()
        command = (*TORCHRUN, "--standalone", "--nproc-per-node=2", *restarts, "-m", "surestep", "run", script)
        if not restarts:
            command = (sys.executable, "-m", "surestep", "run", script)
        environ = {**os.environ, "OUT": str(directory), "TORCHELASTIC_RESTART_COUNT": count}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    (restarted, undisturbed) = (line for line in said if line.startswith("restart "))
    weights = [json.loads(line.split(": ")[1]) for line in (restarted, undisturbed)]
    assert restarted.startswith("restart 1 from 4: ") and undisturbed.startswith("restart - from 0: ")
    assert weights[0] == pytest.approx(weights[1], rel=1e-5)
