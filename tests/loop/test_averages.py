"""AveragedModel: the averages are those of the CPU, and no update reads a value."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from steps import Case, beside, model

KINDS = {
    "mean": {},
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    "function": {"avg_fn": lambda old, new, count: old + (new - old) / (count + 2)},
    "buffers": {"use_buffers": True},
}


@pytest.mark.parametrize("where", ["device", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_as_on_the_cpu(kind, where):
    def case(device):
        net = model(device, nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        averaged = AveragedModel(net, device=device if where == "device" else None, **KINDS[kind])

        def step(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            averaged.update_parameters(net)
            return loss.detach()

        return Case(step, state=lambda: [*averaged.parameters(), *averaged.buffers()])

    beside(case, True, 7)
