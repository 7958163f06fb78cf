"""optimizer_step over one replica."""

import pytest
import torch

import surestep
from surestep.loop.optimizer import gradients, reduce_gradients


def one_parameter():
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.SGD([parameter, torch.nn.Parameter(torch.ones(1, device="xla"))], lr=0.5)
    (parameter * 3).sum().backward()
    return parameter, optimizer


def test_it_steps_and_returns_what_the_optimizer_returns():
    parameter, optimizer = one_parameter()
    assert surestep.optimizer_step(optimizer, optimizer_args={"closure": lambda: 7}) == 7
    assert parameter.tolist() == [-0.5, -0.5]


def test_inside_a_step_it_makes_no_boundary(metrics):
    with surestep.step():
        parameter, optimizer = one_parameter()
        surestep.optimizer_step(optimizer, barrier=True)
        assert metrics().run.count == 0
    assert metrics().to_dict()["boundaries"] == {"end of step()": 1}
    assert parameter.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("barrier", [True, False])
def test_outside_one_it_makes_one(metrics, barrier):
    parameter, optimizer = one_parameter()
    surestep.optimizer_step(optimizer, barrier=barrier)
    assert metrics().run.count == 1
    assert parameter.tolist() == [-0.5, -0.5]


def test_gradients_are_those_that_are_there():
    parameter, optimizer = one_parameter()
    assert [gradient is parameter.grad for gradient in gradients(optimizer)] == [True]
    reduce_gradients(optimizer)
    assert parameter.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("given", [None, torch.nn.Linear(1, 1)])
def test_no_optimizer_is_said(given):
    with pytest.raises(TypeError, match=f"an optimizer is expected, with its param_groups, and this is a {type(given).__name__}"):
        reduce_gradients(given)
