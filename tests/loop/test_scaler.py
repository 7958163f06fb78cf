"""torch.amp.GradScaler: a step reads nothing, steps with an overflow change nothing, and all of it is replayed."""

from __future__ import annotations

import pytest
import torch

from steps import Case, run, trained

MAKERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "NAdam": torch.optim.NAdam,
    "Adafactor": torch.optim.Adafactor,
}


def scaled(make, unscale):
    def case(device):
        net, optimizer = trained(device, make)
        net.float()
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3)
        calls = []

        def step(x):
            optimizer.zero_grad()
            loss = net(x.float()).square().mean()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        def overflowing(step):
            def call(x):
                calls.append(x)
                return step(x * (float("inf") if len(calls) in (1, 7) else 1.0))

            return call

        step.scaled = overflowing

        def state():
            counts = [float(each["step"]) for each in optimizer.state.values() if "step" in each]
            return [*net.parameters()], scaler.get_scale(), counts

        return Case(step, state=state)

    return case


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_as_on_the_cpu(kind, unscale):
    _, expected, (weights, scale, counts) = run(scaled(MAKERS[kind], unscale), "cpu", 10, False)
    step, found, (ours, our_scale, our_counts) = run(scaled(MAKERS[kind], unscale), "xla", 10, True)
    for a, b in zip([*expected, *weights], [*found, *ours], strict=True):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert scale == our_scale and counts == our_counts
    assert sum(plan.runs for plans in step.plans.values() for plan in plans) > 5


def test_hooks_on_the_step_are_not_called_for_an_overflow():
    net, optimizer = trained("xla", MAKERS["SGD"])
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    scaler = torch.amp.GradScaler("xla")
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(3, 4, dtype=torch.float64, device="xla") * factor).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(steps) == 1
