"""Checkpoints that plain PyTorch loads."""

import io
import subprocess
import sys

import torch
from torch import nn

import surestep
from surestep.loop.checkpoint import to_cpu


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_a_process_without_surestep_loads_it(tmp_path):
    model = Tied().to("xla")
    surestep.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "model.pt")
    code = """
import sys, torch
found = torch.load(sys.argv[1], weights_only=True)
assert "surestep" not in sys.modules and found["epoch"] == 3
a, b = found["model"].values()
assert a.device.type == "cpu" and a.data_ptr() == b.data_ptr()
print(a.sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model.pt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - model.head.weight.sum().item()) < 1e-6


def test_views_stay_views_of_one_memory():
    base = torch.arange(6.0, device="xla").reshape(2, 3)
    whole, row, turned = to_cpu([base, base[1], base.t()])
    assert row.tolist() == [3, 4, 5] and turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    whole[1, 0] = 9
    assert row[0].item() == 9 and turned[0, 1].item() == 9


def test_what_was_saved_is_the_value_then():
    weight = torch.ones(2, device="xla")
    saved = to_cpu(weight)
    weight.add_(1)
    assert saved.tolist() == [1, 1] and weight.tolist() == [2, 2]


def test_parameters_and_other_objects_are_kept():
    parameter = nn.Parameter(torch.ones(2, device="xla"), requires_grad=False)
    buffer = torch.arange(2, device="xla")
    found = to_cpu({"parameter": parameter, "buffer": buffer, "host": torch.ones(1), "name": "x"})
    assert isinstance(found["parameter"], nn.Parameter) and not found["parameter"].requires_grad
    assert found["buffer"].dtype is torch.int64 and found["buffer"].tolist() == [0, 1]
    assert found["name"] == "x"


def test_an_optimizers_state_goes_into_a_file_object():
    parameter = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    file = io.BytesIO()
    surestep.save(optimizer.state_dict(), file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert found["state"][0]["exp_avg"].device.type == "cpu"
    torch.testing.assert_close(found["state"][0]["exp_avg"], torch.full((2,), 0.1))


def test_saving_makes_one_boundary_of_its_own(metrics):
    tensors = [torch.ones(2, device="xla") + number for number in range(3)]
    surestep.save(tensors, io.BytesIO())
    assert metrics().to_dict()["boundaries"] == {"sync": 1}
