"""Batches that are views of one tensor (``step(data[i])``): where one begins is a number of the program, and a replay takes the new one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import surestep

ROWS = 24


def run(device, body, picks, compiled):
    """Calls ``body(net, optimizer, *views)`` for each pick, with ``data`` before the views if it takes it.

    Gives all losses, the parameters and what became of the data.
    """
    torch.manual_seed(0)
    data = torch.randn(ROWS, 6, 4, dtype=torch.float64).to(device)
    target = torch.randn(ROWS, 6, 1, dtype=torch.float64).to(device)
    net = nn.Linear(4, 1).double().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)

    def with_data(x, y):
        return body(net, optimizer, data, x, y)

    def without(x, y):
        return body(net, optimizer, x, y)

    step = with_data if body.__code__.co_argcount == 5 else without
    function = surestep.compile(step) if compiled else step
    losses = [function(*pick(data, target)).clone() for pick in picks]
    return [t.detach().cpu() for t in (*losses, *net.parameters(), data)], function


def trained(net, optimizer, x, y):
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def same(body, picks):
    theirs, _ = run("cpu", body, picks, False)
    ours, function = run("xla", body, picks, True)
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(b, a)
    return function


def rows(order):
    return [lambda data, target, i=i: (data[i], target[i]) for i in order]


ORDERS = {
    "in turn": [*range(12), *range(12)],
    "backwards": range(20, 0, -1),
    "the first one for long": [0] * 6 + [5, 9, 2, 0, 0, 7, 7, 1],
    "two in turns": [3, 8] * 8,
    "each twice": [i // 2 for i in range(24)],
}


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_a_data_set(order):
    function = same(trained, rows(ORDERS[order]))
    assert function.recorded <= 9, surestep.explain(function)


def test_one_of_two_moves():
    picks = [lambda data, target, i=i: (data[i], target[3]) for i in range(12)]
    picks += [lambda data, target, i=i: (data[2], target[i]) for i in range(12)]
    picks += rows(range(6))
    same(trained, picks)


@pytest.mark.parametrize(
    "view",
    [
        lambda t, i: t[2 * i : 2 * i + 2],
        lambda t, i: t[i : i + 3],
        lambda t, i: t[i::12],
        lambda t, i: t[i].flip(0)[:3],
        lambda t, i: t[i, i % 3 :][:3],
        lambda t, i: t.transpose(0, 1)[:, i : i + 2],
        lambda t, i: t.view(-1)[i : i + t.shape[-1]],
        lambda t, i: t[i] if i % 2 else t[i].clone(),
    ],
)
def test_views_of_all_kinds(view):
    picks = [lambda data, target, i=i: (view(data, i), view(target, i)) for i in range(12)]
    same(trained, picks)


BODIES = {
    "parts of it": lambda net, o, x, y: trained(net, o, x[1:4], y[1:4]) + x[0].sum() + x[-1, 2],
    "its base as well": lambda net, o, data, x, y: trained(net, o, x, y) + data[3].sum() + data[:2].mean(),
    "what it is a view of": lambda net, o, x, y: trained(net, o, x, y) + x._base[2].sum(),
    "memory beyond it": lambda net, o, x, y: trained(net, o, x, y) + x.as_strided((2,), (1,), x.storage_offset() + 1).sum(),
    "another place by its offset": lambda net, o, x, y: trained(net, o, x, y) + x.as_strided((2,), (1,), x.storage_offset() // 2).sum(),
    "its offset as a number": lambda net, o, x, y: trained(net, o, x, y) * (1 + x.storage_offset()),
    "a branch on its offset": lambda net, o, x, y: trained(net, o, x, y) * (2 if x.storage_offset() > 99 else 1),
    "written": lambda net, o, x, y: trained(net, o, x.mul_(0.9), y),
    "its base is written": lambda net, o, data, x, y: (data.mul_(0.9), trained(net, o, x, y))[1],
    "written after": lambda net, o, x, y: (trained(net, o, x, y), x.add_(1))[0],
    "returned": lambda net, o, x, y: (trained(net, o, x, y), x)[1],
    "a view of it is returned": lambda net, o, x, y: (trained(net, o, x, y), x[1])[1],
    "noise": lambda net, o, x, y: trained(net, o, x, y) + 0 * torch.rand_like(x).sum(),
    "through another dtype": lambda net, o, x, y: trained(net, o, x, y) + (x.view(torch.int32)[1:] & 1).sum(),
    "not used": lambda net, o, x, y: trained(net, o, torch.ones_like(x), y),
}


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_what_is_done_with_it(body, verified, monkeypatch):
    if verified:
        monkeypatch.setenv("SURESTEP_VERIFY_REPLAY", "1")
    same(BODIES[body], rows([0, 0, 0, *range(12), *range(12), 5, 5, 5]))


def windows(order):
    """As language models are trained: what comes next is the target."""
    return [lambda data, target, i=i, k=k: (data.view(-1, 4)[i : i + 8], data.view(-1, 4)[i + k : i + k + 8, :1]) for i, k in order]


@pytest.mark.parametrize("order", ORDERS)
def test_two_windows_of_one_tensor(order):
    function = same(trained, windows([(i, 1) for i in ORDERS[order]]))
    assert function.recorded <= 9, surestep.explain(function)


def test_two_windows_whose_distance_changes():
    same(trained, windows([(i, 1 + i % 3) for i in range(24)]))
    same(trained, windows([(i, 1 if i < 12 else 2) for i in range(24)]))
    same(trained, windows([(i % 7, 0) for i in range(12)]))


def test_two_windows_that_part():
    """Later in tensors of their own, or one of them in another."""
    first = windows([(i, 1) for i in range(10)])
    second = [lambda data, target, i=i: (data.view(-1, 4)[i : i + 8], (data * 2).view(-1, 4)[i + 1 : i + 9, :1]) for i in range(8)]
    same(trained, [*first, *second, *first])


@pytest.mark.parametrize(
    "body",
    [
        lambda net, o, x, y: trained(net, o, x.mul_(0.9), y),
        lambda net, o, x, y: trained(net, o, x, y.add_(1)),
        lambda net, o, x, y: (trained(net, o, x, y), x.copy_(x + y))[0],
        lambda net, o, x, y: (trained(net, o, x, y), y)[1],
        lambda net, o, x, y: trained(net, o, x[2:], y[2:]) + y.sum() + (x - y).square().sum(),
    ],
)
def test_what_is_done_with_two_windows(body):
    same(body, windows([(i, 1) for i in [0, 0, 0, *range(12), 5, 5]]))


def test_a_tensor_and_a_window_of_it():
    picks = [lambda data, target, i=i: (data.view(-1, 4), data.view(-1, 4)[i : i + 1, :1]) for i in range(12)]
    same(trained, picks)


def test_of_one_shape_in_two_tensors():
    """The place among the program's inputs is the argument's, whatever tensor it is a view of."""
    picks = [lambda data, target, i=i: ((data if i % 3 else data * 2)[i], target[i]) for i in range(20)]
    same(trained, picks)


def test_numbers_are_drawn_anew():
    torch.manual_seed(0)
    data = torch.ones(ROWS, 64, device="xla")
    drop = surestep.compile(lambda x: nn.functional.dropout(x, 0.5))
    found = [drop(data[i]).cpu() for i in range(10)]
    assert drop.recorded < 8
    assert len({tuple(t.tolist()) for t in found}) == 10
