"""Eager mode: each operation is run at once, the same values; steps and compiled functions stay one program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import surestep
from surestep.loop.eager import eager_mode, eager_mode_context, is_eager_mode
from surestep.observe.events import Cause


@pytest.fixture
def eager():
    eager_mode(True)
    yield
    eager_mode(False)


def test_each_operation_is_a_run(eager, metrics):
    x = torch.ones(3, device="xla")
    surestep.clear_metrics()
    y = (x + 1) * 2
    y.add_(1)
    y[0] = 7
    found = metrics()
    assert found.boundaries[Cause.EAGER] == found.run.count >= 4 and not found.implicit
    assert y.tolist() == [7.0, 5.0, 5.0]
    assert metrics().boundaries[Cause.VALUE] == 0  # it was there


def test_the_same_operations_compile_once(eager, metrics):
    def work():
        x = torch.full((5,), 2.0, device="xla")
        return (x.exp() - x).sum()

    work()
    surestep.clear_metrics()
    first, second = work(), work()
    assert metrics().compile.count == 0 and first.item() == second.item()


def train(device, wrap=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4).to(device)

    def step(value):
        optimizer.zero_grad()
        loss = net(value).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(step) if wrap else step
    for _ in range(6):
        step(x)
    return [p.detach().cpu() for p in (*net.parameters(), *net.buffers())]


def test_training_is_the_same(eager):
    torch.testing.assert_close(train("xla"), train("cpu"), rtol=1e-9, atol=1e-9)


def test_compiled_inside(eager, metrics):
    surestep.clear_metrics()
    torch.testing.assert_close(train("xla", surestep.compile), train("cpu"), rtol=1e-9, atol=1e-9)
    assert metrics().replays > 0


def test_a_step_is_one_program(eager, metrics):
    x = torch.ones(3, device="xla")
    surestep.clear_metrics()
    with surestep.step():
        y = x * 2
        y = y + 1
    assert metrics().run.count == 1 and y.tolist() == [3.0] * 3


def test_on_and_off():
    assert not is_eager_mode()
    pending = torch.ones(2, device="xla") + 1
    with eager_mode_context(True):
        assert is_eager_mode()
        with eager_mode_context(False):
            assert not is_eager_mode()
        assert (pending * 2).tolist() == [4.0, 4.0]
    assert not is_eager_mode()
    surestep.clear_metrics()
    assert (pending + 1 + 1).tolist() == [4.0, 4.0]
    assert surestep.metrics().boundaries[Cause.EAGER] == 0


def test_errors_are_pytorchs(eager):
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(2, device="xla") + torch.ones(3, device="xla")
    assert (torch.ones(2, device="xla") + 1).tolist() == [2.0, 2.0]
