"""surestep in a minute: what the tutorial shows, and the first thing to run after a change."""

import torch
from torch import nn

import surestep


def test_a_tensor_on_the_device():
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    y = x.t() @ x + 1
    assert y.device == torch.device("xla:0") and y.shape == (3, 3)
    assert y.tolist() == [[10, 13, 16], [13, 18, 23], [16, 23, 30]]


def test_a_training_loop_in_steps(metrics):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).to("xla")
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]]).to("xla")
    for _ in range(300):
        with surestep.step():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.05  # it has learned exclusive or
    assert metrics().compile.count <= 2 and metrics().run.count == 300


def test_the_same_loop_without_any_call_of_ours(metrics):
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.ones(4, 2).to("xla"), torch.zeros(4, 1).to("xla")
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert model(x).abs().max().item() < 1e-3
    assert metrics().compile.count <= 3


def test_views_and_writes_are_pytorchs():
    x = torch.zeros(3, 3, device="xla")
    x[1].add_(1)
    x.t()[0].mul_(5).add_(2)
    assert x.tolist() == [[2, 0, 0], [7, 1, 1], [2, 0, 0]]


def test_numbers_that_change_do_not_compile_again(metrics):
    x = torch.zeros(2).to("xla")
    for i in range(20):
        x.add_(float(i))
        surestep.sync()
    assert x.tolist() == [190, 190] and metrics().compile.count == 2
