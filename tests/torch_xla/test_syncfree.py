"""Optimizers that step under a GradScaler without reading whether gradients overflowed."""

import pytest
import torch

import surestep
from surestep.torch_xla.amp import syncfree

OPTIONS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.1}, "AdamW": {"lr": 0.1, "weight_decay": 0.1}}
GOOD, BAD = [4.0, 8.0], [float("inf"), float("nan")]


def trained(kind, gradients, device, **options):
    """The weights after steps with these gradients, scaled by a GradScaler, and the scale."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=device))
    optimizer = kind([weight], **options)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    for gradient in gradients:
        with surestep.step():
            optimizer.zero_grad()
            scaler.scale((weight * torch.tensor(gradient, device=device)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    return weight.detach().cpu(), scaler.get_scale()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("gradients", [[BAD, GOOD, GOOD], [GOOD, BAD, GOOD]], ids=["first", "second"])
def test_an_overflow_changes_nothing(name, gradients):
    ours = trained(getattr(syncfree, name), gradients, "xla", **OPTIONS[name])
    plain = trained(getattr(torch.optim, name), gradients, "cpu", **OPTIONS[name])
    torch.testing.assert_close(ours, plain)
    assert ours[1] == 2.0


@pytest.mark.parametrize("name", OPTIONS)
def test_nothing_is_read(name, metrics):
    trained(getattr(syncfree, name), [GOOD, BAD, GOOD], "xla", lr=0.1)
    assert metrics().transfer_out.count == 2  # the results
    assert metrics().implicit.total() == 0
