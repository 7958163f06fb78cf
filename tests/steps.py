"""Compiled steps beside plain ones: a case makes a step and what happens to its state between calls; each call is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import surestep


class Case(NamedTuple):
    step: Callable[..., Any]
    between: Callable[[int], Any] = lambda i: None
    state: Callable[[], Any] = lambda: None


class Cases(dict[str, tuple[Callable[[str], Case], bool | None]]):
    """What makes each case, by its name; and whether it is replayed."""

    def case(self, replayed: bool | None):
        """Decorates a function that makes one."""

        def add(make):
            assert make.__name__ not in self, f"there are two cases {make.__name__}"
            self[make.__name__] = make, replayed
            return make

        return add


def f64(*sizes, device="cpu", v=1.0):
    return torch.full(sizes, v, dtype=torch.float64).to(device)


def model(device, *extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *extra, nn.Linear(8, 2)).double().to(device)


def batch(device, i=0):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator).to(device)


def trained(device, make=None, net=None):
    net = net or model(device)
    optimizer = (make or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(net.parameters())
    return net, optimizer


def plain_step(net, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run(make, device, steps, compiled):
    made = make(device)
    step = surestep.compile(made.step) if compiled else made.step
    wrap = getattr(made.step, "scaled", None)
    call = wrap(step) if wrap else step
    results = []
    for i in range(steps):
        results.append(call(batch(device, i)))
        made.between(i)
    return step, results, made.state()


def same(a, b, where):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-9, atol=1e-11, msg=lambda m: f"{where}: {m}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for position, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{position}]")
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-9), where
    else:
        assert a == b, where


def beside(make: Callable[[str], Case], replayed: bool | None, calls: int = 14) -> None:
    """Each call gives what plain PyTorch gives on the CPU; ``replayed`` says whether some must be, none may be, or either."""
    _, expected, state = run(make, "cpu", calls, False)
    step, found, ours = run(make, "xla", calls, True)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        same(a, b, f"call {i}")
    same(state, ours, "state")
    counted = step.__func__ if hasattr(step, "__func__") else step
    runs = sum(plan.runs for plans in counted.plans.values() for plan in plans)
    if replayed is not None:
        assert bool(runs) is replayed, surestep.explain(counted)
