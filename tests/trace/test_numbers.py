"""Numbers: constants at first, inputs once they change; and a change costs one program, not one a number or a step."""

import pytest
import torch
from torch import nn

import surestep
from both import compare


def train(device, steps, optimizer, schedule=lambda optimizer, step: None, dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype).to(device)
    opt = optimizer(model.parameters())
    x, y = torch.linspace(-1, 1, 24, dtype=dtype).reshape(6, 4).to(device), torch.ones(6, 1, dtype=dtype).to(device)
    for step in range(steps):
        schedule(opt, step)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    return [p.detach() for p in model.parameters()]


def set_lr(lr):
    def schedule(optimizer, step):
        optimizer.param_groups[0]["lr"] = lr(step)

    return schedule


@pytest.mark.parametrize(
    ("optimizer", "programs"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 2),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 3),
        (lambda p: torch.optim.AdamW(p, 0.1), 3),
        (lambda p: torch.optim.RMSprop(p, 0.1), 3),
    ],
)
def test_a_schedule_costs_one_more_program(optimizer, programs, metrics):
    schedule = set_lr(lambda step: 0.1 / (1 + step))
    ours = train("xla", 60, optimizer, schedule)
    compare(train("cpu", 60, optimizer, schedule), ours, rtol=1e-9, atol=1e-9)
    assert metrics().compile.count <= programs


@pytest.mark.parametrize("lrs", [(0.9, 0.5, 0.9), (0.5, 0.0, -0.0, 1.0, 1, 2, 0.1), (0.1, float(2**60), 1e-30, 0.1), (1, 1.0, 2, 0.5)])
def test_values_on_the_way_change_nothing(lrs, metrics):
    """A learning rate equal to the momentum, 0, -0.0, 1, an integer, huge, tiny."""

    def run(device):
        weight, found = torch.ones(3, dtype=torch.float64).to(device), []
        for lr in lrs * 3:
            weight.mul_(0.9).add_(torch.ones_like(weight), alpha=lr).sub_(lr)
            found.append(weight / (lr if lr else 1.0))
            if device == "xla":
                surestep.sync()
        return found

    ours = run("xla")
    compare(run("cpu"), ours, rtol=1e-12, atol=1e-12)
    assert metrics().compile.count <= 6


def test_two_numbers_that_change_at_different_times(metrics):
    x, found = torch.ones(2).to("xla"), []
    for step in range(12):
        found.append((x * float(step) + float(step // 4)).add(float(step // 6)))
        surestep.sync()
    assert [f[0].item() for f in found] == [float(step + step // 4 + step // 6) for step in range(12)]
    assert metrics().compile.count <= 4


def test_integers_are_exact_as_inputs():
    x = torch.zeros(1, dtype=torch.int64).to("xla")
    values = [2**62 + k for k in range(5)]
    assert [(x + value).item() for value in values] == values


def test_a_number_that_shapes_a_result_stays_a_constant(metrics):
    for n in (2, 3, 4, 2, 3, 4):
        assert torch.arange(n, device="xla").sum().item() == n * (n - 1) // 2
    assert metrics().compile.count == 3


def test_a_smaller_last_batch_costs_one_program(metrics):
    def epoch(model, data):
        for batch in data.split(4):
            with surestep.step():
                model(batch).sum().backward()

    model, data = nn.Linear(3, 1).to("xla"), torch.ones(10, 3).to("xla")
    epoch(model, data)
    epoch(model, data)
    assert metrics().compile.count == 3  # the very first batch, which has no gradients to add to; the whole ones; the small one
    epoch(model, data)
    assert metrics().compile.count == 3


def test_0_dim_cpu_tensors_are_inputs(metrics):
    x, found = torch.ones(2).to("xla"), []
    for value in (1.5, 2.5, 3.5):
        found.append(x * torch.tensor(value))
        surestep.sync()
    assert [f[0].item() for f in found] == [1.5, 2.5, 3.5] and metrics().compile.count == 1
