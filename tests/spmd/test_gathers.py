"""Parameters that a program puts together again on each device, though they are split: said, unless FSDP does it."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
import torch

import surestep
import surestep.torch_xla.distributed.spmd as xs
from surestep.trace import marks


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(marks, "_said", set())


def said(mesh, first, second, inputs, hidden=None, rows=512) -> list[warnings.WarningMessage]:
    """What is said of two layers, with the parameters and activations split so, when they have run for one batch."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).to("xla")
    for layer, spec in ((model[0], first), (model[2], second)):
        xs.mark_sharding(layer.weight, mesh, spec)
        xs.mark_sharding(layer.bias, mesh, spec[:1])
    x = xs.mark_sharding(torch.randn(rows, 32).to("xla"), mesh, inputs)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            middle = model[:2](x)
            if hidden is not None:
                xs.mark_sharding(middle, mesh, hidden)
            model[2](middle).square().mean().backward()
            surestep.sync()
    return found


def grid(devices: int, data: str = "data") -> xs.Mesh:
    second = 2 if devices > 1 else 1
    return xs.Mesh(np.arange(devices), (devices // second, second), (data, "model"))


MARKED = inspect.getsourcelines(said)[1] + next(
    number for number, line in enumerate(inspect.getsourcelines(said)[0]) if "layer.weight" in line
)


def test_a_weight_along_the_axis_of_the_batch_is_said_at_the_line_that_marks_it(devices):
    found = said(xs.get_1d_mesh("data"), ("data", None), (None, "data"), ("data", None))
    if devices == 1:
        assert not found
        return
    (warning,) = found
    assert (warning.filename, warning.lineno) == (__file__, MARKED)
    text = str(warning.message)
    assert f"split at {__file__}:{MARKED} are gathered whole on each device by the program that ends at {__file__}" in text
    assert "[64, 32] by ('data', None), [32, 64] by (None, 'data'). " in text
    assert "name the mesh's axis 'fsdp'" in text


def test_it_is_said_once(devices):
    mesh = xs.get_1d_mesh("data")
    for rows, expected in ((512, devices > 1), (1024, False)):
        assert bool(said(mesh, ("data", None), ("data", None), ("data", None), rows=rows)) == expected


def test_layers_that_do_not_fit_are_said(devices):
    found = said(grid(devices), ("model", None), (None, "model"), ("data", None), hidden=("data", None))
    assert ["[32, 64] by (None, 'model'). " in str(warning.message) for warning in found] == [True] * (devices > 1)


@pytest.mark.parametrize(
    ("data", "first", "second", "inputs"),
    [
        ("fsdp", ("fsdp", None), (None, "fsdp"), ("fsdp", None)),
        ("data", ("model", None), (None, "model"), ("data", None)),
        ("fsdp", ("model", "fsdp"), ("fsdp", "model"), ("fsdp", None)),
    ],
    ids=["FSDP", "tensor parallel", "both"],
)
def test_what_is_gathered_by_design_or_not_at_all_is_not_said(devices, data, first, second, inputs):
    assert not said(grid(devices, data), first, second, inputs)


def test_a_mark_that_was_taken_back_counts_no_more(devices):
    weight = torch.nn.Parameter(torch.randn(64, 32)).to("xla")
    mesh = xs.get_1d_mesh("data")
    xs.clear_sharding(xs.mark_sharding(weight, mesh, ("data", None)))
    x = xs.mark_sharding(torch.randn(512, 32).to("xla"), mesh, ("data", None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x @ weight.t()).sum().item()
