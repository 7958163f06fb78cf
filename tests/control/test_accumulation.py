"""``gradient_accumulation`` is the loop of small backward passes, in one program."""

import copy
import functools

import pytest
import torch
from torch import nn

import surestep
from surestep.control.accumulation import gradient_accumulation


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Tanh(), nn.Linear(4, 2)).double().to("xla")
    net.unused = nn.Linear(2, 2).double().to("xla")
    return net


def accumulated(train_step, tensors, model, carried):
    total, count = 0, len(tensors[0])
    for slices in zip(*tensors, strict=True):
        loss, *carried = train_step(*slices, *carried)
        (loss / count).backward()
        total = total + loss.detach() / count
    return total, *carried


def train_step(forward, a, b, number, random):
    return nn.functional.mse_loss(forward(a), b), number + 1, torch.rand_like(random) - random


def test_it_is_the_loop(metrics):
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(3, 5, size, dtype=torch.float64, generator=generator).to("xla") for size in (3, 2))
    results = []
    for how in (accumulated, gradient_accumulation):
        net, seen = network(), []
        forward = nn.Sequential(*list(net)[:4])
        net[0].weight.register_hook(lambda grad, seen=seen: seen.append(1) or grad * 2)
        surestep.manual_seed(2)
        state = (torch.tensor([5, 5], device="xla"), torch.zeros((), device="xla"))
        step = functools.partial(train_step, forward)
        for _ in range(2):  # the second time there are gradients already
            with surestep.step():
                surestep.clear_metrics()
                loss, *state = how(step, (x, y), net, state)
            assert metrics().run.count == 1
        assert net.unused.weight.grad is None and seen
        results.append([loss, *state, *(p.grad for p in forward.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_without_carried_tensors_and_with_one():
    net = nn.Linear(2, 1).to("xla")
    x = torch.ones(3, 4, 2, device="xla")
    (loss,) = gradient_accumulation(lambda a: net(a).square().mean(), (x,), net)
    torch.testing.assert_close(loss, net(x).square().mean().detach())
    loss, count = gradient_accumulation(lambda a, n: (net(a).mean(), n + 1), [x], copy.deepcopy(net), torch.zeros(2, device="xla"))
    assert count.tolist() == [3, 3]
    start = torch.zeros((), device="xla")
    _, count, more = gradient_accumulation(lambda a, n, m: (net(a).mean(), n + 1, m + 2), [x], copy.deepcopy(net), start, start)
    assert (count.item(), more.item()) == (3, 6)


def test_errors():
    net, x = nn.Linear(2, 1).to("xla"), torch.ones(3, 4, 2, device="xla")
    for tensors, message in (
        ([], "cannot be empty"),
        ([x, 1], "element 1 of iterable_tensors is not a tensor"),
        ([x, x[:, :0]], "element 1 of iterable_tensors is empty"),
        ([x, x[:2]], "element 1 of iterable_tensors has inconsistent"),
    ):
        with pytest.raises(ValueError, match=message):
            gradient_accumulation(lambda *each: net(each[0]).sum(), tensors, net)
    with pytest.raises(ValueError, match=r"must return the loss, of one element.*returned a tensor on xla:0 \(float32\[4, 1\]\)"):
        gradient_accumulation(lambda a: net(a), (x,), net)
    net.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(NotImplementedError, match="weight has a hook"):
        gradient_accumulation(lambda a: net(a).sum(), (x,), net)
