"""A model's intermediate tensors, saved in two runs and compared."""

import os

import pytest
import torch

from surestep.torch_xla.debug import model_comparator as mc


@pytest.fixture(autouse=True)
def put_back():
    yield
    mc.configure(None)


def run(directory, device, bias=0.0, steps=(None,)):
    os.mkdir(directory)
    mc.configure(str(directory))
    x = torch.arange(6.0).reshape(2, 3).to(device)
    for step in steps:
        mc.save(None, x, step)
        for _ in range(2):
            x = mc.save("layer", torch.sin(x) + bias, step)


@pytest.mark.parametrize("steps", [(None,), (0, 1)])
def test_the_device_and_the_cpu_compute_the_same(tmp_path, steps):
    run(tmp_path / "cpu", "cpu", steps=steps)
    run(tmp_path / "xla", "xla", steps=steps)
    assert mc.compare(str(tmp_path / "cpu"), str(tmp_path / "xla"), atol=1e-6) == ""
    saved = sorted(os.listdir(tmp_path / "cpu"))
    assert (
        saved == ["step-0", "step-1"]
        if steps[0] == 0
        else saved[:2] == ["layer.0", "layer.1"] and saved[2].startswith("test_model_comparator.py.l")
    )


def test_what_differs_is_told(tmp_path):
    run(tmp_path / "a", "cpu")
    run(tmp_path / "b", "xla", bias=1.0)
    os.remove(tmp_path / "b" / "layer.1")
    report = mc.compare(str(tmp_path / "a"), str(tmp_path / "b"), max_diffs=2)
    assert report.startswith("layer, number 0, differs:\n  at [0, 0]: 0.0 and 1.0\n")
    assert "  and at 4 more of 6\n" in report and report.endswith(f"layer.1 is in {tmp_path / 'a'} only\n")
    assert mc.compare_tensors(torch.ones(2), torch.ones(3)) == "shapes [2] and [3]\n"
    assert mc.compare_tensors(torch.tensor([torch.nan, 1]), torch.tensor([torch.nan, torch.nan])) == "at [1]: 1.0 and nan\n"


def test_nothing_is_saved_where_nothing_says_where(tmp_path, monkeypatch):
    x = torch.ones(1)
    assert mc.save("x", x) is x
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path))
    mc.save("x", x)
    assert os.listdir(tmp_path) == ["x.0"]
