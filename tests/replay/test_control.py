"""Compiled steps with control flow in them are replayed, and are what they would be if they were recorded each time."""

import pytest
import torch
from torch import nn

import surestep
from surestep.control.accumulation import gradient_accumulation
from surestep.control.assume import PureModule, assume_pure
from surestep.control.choice import cond
from surestep.control.layers import scan_layers
from surestep.control.loops import while_loop
from surestep.control.scan import scan


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.linear(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.pure = PureModule(nn.Linear(4, 4))

    def by_layers(self, x):
        return scan_layers(self.layers, x)

    def by_scan(self, x):
        def step(carry, part):
            state, count = carry
            return (torch.tanh(state @ self.weight) + part + torch.rand_like(part), count + 1), state

        (state, _), ys = scan(step, (x[0], torch.zeros((), device="xla")), x)
        return state + ys.sum(0)

    def by_pure(self, x):
        return self.pure(scaled(x, 2.0)) + self.weight.sum()

    def by_loops(self, x):
        with torch.no_grad():
            _, doubled = while_loop(lambda n, y: n.sum() < 8, lambda n, y: (n * 2, y + n), (torch.ones_like(x[0, 0]), x))
            chosen = cond(doubled.sum() > 0, lambda y: y * 2, lambda y: y - 1, (doubled,))
        return chosen @ self.weight


@assume_pure
def scaled(x, by):
    return x * by


def trained(how, compiled, steps=6):
    torch.manual_seed(0)
    net = Net().to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = getattr(net, how)(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = surestep.compile(step) if compiled else step
    surestep.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        x = torch.randn(3, 4, generator=generator).to("xla")
        if compiled:
            losses.append(run(x))
        else:
            with surestep.step():
                losses.append(run(x))
    return [torch.stack(losses), *net.parameters()], run


@pytest.mark.parametrize("how", ["by_layers", "by_scan", "by_pure", "by_loops"])
def test_replayed(how):
    expected, _ = trained(how, False)
    found, step = trained(how, True)
    assert step.recorded < 6, step.last
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)


def test_gradient_accumulation():
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(4, 1).to("xla")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def micro(x, count, net=net):
            return net(x).square().mean(), count + 1

        def step(x, count, net=net, optimizer=optimizer, micro=micro):
            optimizer.zero_grad()
            loss, count = gradient_accumulation(micro, (x,), net, (count,))
            optimizer.step()
            return loss, count

        run = surestep.compile(step) if compiled else step
        count = torch.zeros(2, device="xla")
        for number in range(6):
            loss, count = run(torch.full((3, 2, 4), float(number), device="xla"), count)
        results.append([loss, count, *net.parameters()])
        if compiled:
            assert run.recorded < 6, run.last
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_what_a_loops_function_reads_is_guarded():
    scale = [2.0]
    step = surestep.compile(lambda x: scan(lambda c, y: (c * scale[0] + y, None), x[0], x)[0])
    x = torch.ones(2, 2, device="xla")
    for number in (2.0, 2.0, 2.0, 3.0):
        scale[0] = number
        assert step(x).tolist() == [number * number + number + 1] * 2


def test_an_effect_in_a_loops_function_is_not_replayed():
    seen = []

    def note(c, y):
        seen.append(1)
        return c + y, None

    step = surestep.compile(lambda x: scan(note, x[0], x)[0])
    for _ in range(4):
        assert step(torch.ones(2, 2, device="xla")).tolist() == [3, 3]
    assert len(seen) == 4
