"""A CPU argument is written over a device tensor that outlives the call: a replay writes it too."""

import gc

import pytest
import torch
from torch import nn

import surestep


class State:
    def __init__(self, device):
        self.buffer, self.other = torch.zeros(3, device=device), torch.zeros(3, device=device)
        self.parameter = nn.Parameter(torch.ones(3, device=device))
        self.parameter.grad = torch.zeros(3, device=device)

    def tensors(self):
        return [self.buffer, self.other, self.parameter.detach(), self.parameter.grad]


def whole(s, t):
    s.buffer.copy_(t)
    return s.buffer * 2


def only(s, t):
    s.buffer.copy_(t)


def returned(s, t):
    return s.buffer.copy_(t)


def without_waiting(s, t):
    s.buffer.copy_(t, non_blocking=True)
    return s.buffer + 1


def data(s, t):
    s.parameter.data.copy_(t)
    return s.parameter.detach() * 2


def parameter(s, t):
    with torch.no_grad():
        s.parameter.copy_(t)
    return s.parameter.detach() * 3


def gradient(s, t):
    s.parameter.grad.copy_(t)
    return s.parameter.grad * 2


def handed_on(s, t):
    s.buffer.copy_(t)
    s.other.copy_(s.buffer)
    return s.other * 1


def changed_again(s, t):
    s.buffer.copy_(t)
    s.buffer.add_(1)


def part(s, t):
    s.buffer[1:].copy_(t[1:])


def another_dtype(s, t):
    s.buffer.copy_(t.double())


STEPS = [whole, only, returned, without_waiting, data, parameter, gradient, handed_on, changed_again, part, another_dtype]


@pytest.mark.parametrize("write", STEPS, ids=lambda step: step.__name__)
def test_what_a_cpu_argument_is_written_to_has_it(write):
    ours, theirs = State("xla"), State("cpu")
    step = surestep.compile(lambda t: write(ours, t))
    for number in range(6):
        given = torch.full((3,), float(number))
        found, expected = step(given.clone()), write(theirs, given.clone())
        if expected is not None:
            assert found.tolist() == expected.tolist()
        for a, b in zip(ours.tensors(), theirs.tensors(), strict=True):
            assert a.tolist() == b.tolist()
    if write is whole:
        assert sum(plan.runs for plans in step.plans.values() for plan in plans) > 0


def test_nothing_of_a_recorded_call_waits_for_the_garbage_collector():
    """Its graphs would keep parameters from being moved, and memory."""
    model = nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(3, 4, device="xla")

    @surestep.compile
    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            step()
        model.double()
        model.float()
        assert next(model.cpu().parameters()).device.type == "cpu"
    finally:
        gc.enable()
