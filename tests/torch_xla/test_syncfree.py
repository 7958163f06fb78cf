"""Optimizers that step under a GradScaler without reading whether gradients overflowed."""

import copy

import pytest
import torch

import surestep
from surestep.torch_xla.amp import syncfree

PLAIN = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
OPTIONS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.1}, "AdamW": {"lr": 0.1, "weight_decay": 0.1}}


def trained(kind, steps, device):
    """Weights after steps; each is (gradient, whether it overflowed)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=device))
    optimizer = kind(weight)
    for gradient, overflow in steps:
        weight.grad = torch.tensor(gradient, device=device)
        if device == "xla":
            optimizer.grad_scale = torch.full((), 4.0, device=device)
            optimizer.found_inf = torch.full((), float(overflow), device=device)
            with surestep.step():
                optimizer.step()
        elif not overflow:
            weight.grad /= 4
            optimizer.step()
    return weight.detach().cpu()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("first", [False, True])
def test_an_overflow_changes_nothing(name, first):
    good, bad = ([4.0, 8.0], False), ([float("inf"), float("nan")], True)
    steps = [bad, good, good] if first else [good, bad, good]
    ours = trained(lambda weight: getattr(syncfree, name)([weight], **OPTIONS[name]), steps, "xla")
    plain = trained(lambda weight: PLAIN[name]([weight], **OPTIONS[name]), steps, "cpu")
    torch.testing.assert_close(ours, plain)


def test_nothing_is_read(metrics):
    trained(lambda weight: syncfree.AdamW([weight]), [([4.0, 8.0], False)] * 3, "xla")
    assert metrics().transfer_out.count == 1  # the result
    assert metrics().implicit.total() == 0


def test_without_a_scaler_it_is_the_plain_one():
    weight = torch.nn.Parameter(torch.ones(2))
    twin = copy.deepcopy(weight)
    for parameter, kind in ((weight, syncfree.SGD), (twin, torch.optim.SGD)):
        parameter.grad = torch.ones(2)
        kind([parameter], lr=0.5).step()
    assert torch.equal(weight, twin)
