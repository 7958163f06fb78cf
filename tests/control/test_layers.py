"""``scan_layers`` is ``nn.Sequential``, compiled once: outputs, gradients, dropout, buffers; layers that differ are errors."""

import copy

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import nn

import surestep
from both import compare
from surestep.control.layers import scan_layers


class Block(nn.Module):
    def __init__(self, width=6, rate=0.3):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop, self.batch = nn.Dropout(rate), nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.batch(self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x))))))


def network(count=3, kind=Block):
    torch.manual_seed(0)
    return nn.Sequential(*[kind() for _ in range(count)]).double()


X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WAYS = {
    "kept": {},
    "again": {"partition_fn": min_cut_rematerialization_partition},
    "pure": {"is_layer_pure": True},
}


def trained(net, forward, x, steps=2):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = x.to("xla").requires_grad_()
    surestep.manual_seed(3)
    for _ in range(steps):
        with surestep.step():
            optimizer.zero_grad()
            loss = forward(net, x).square().sum()
            loss.backward()
            optimizer.step()
    return [loss.detach(), x.grad, *net.parameters(), *(p.grad for p in net.parameters()), *net.buffers()]


@pytest.fixture(scope="module")
def expected():
    return trained(network().to("xla"), lambda net, x: net(x), X)


@pytest.mark.parametrize("way", WAYS)
def test_training(way, expected, metrics):
    surestep.clear_metrics()
    found = trained(network().to("xla"), lambda net, x: scan_layers(net, x, **WAYS[way]), X)
    assert metrics().run.count == 2
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_it_is_as_on_the_cpu():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.w = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))

        def forward(self, x, y):
            return self.a(x).sin(), self.a(y) @ self.w

    results = []
    for device, how in (("cpu", lambda layers, x: layers[2](*layers[1](*layers[0](*x)))), ("xla", scan_layers)):
        net = network(kind=Pair).to(device)
        x = X.clone().to(device).requires_grad_()
        a, b = how(net, (x, x * 2))
        (a.sum() * b.square().sum()).backward()
        results.append([a.detach(), b.detach(), x.grad, *(p.grad for p in net.parameters())])
    compare(*results, strides=False, rtol=1e-9, atol=1e-9)


def test_each_gradient_has_memory_of_its_own():
    net = network().to("xla").eval()
    scan_layers(net, X.to("xla")).sum().backward()
    storages = {id(p.grad._storage) for p in net.parameters()}
    assert len(storages) == len(list(net.parameters())) and all(p.grad._layout is p.grad._storage.layout for p in net.parameters())


def test_frozen_and_tied_parameters():
    results = []
    for how in (lambda net, x: net(x), scan_layers):
        net = network().to("xla").eval()
        net[1].up.weight.requires_grad_(False)
        for layer in net:
            layer.norm.bias.requires_grad_(False)
        net[2].down.weight = net[0].down.weight
        how(net, X.to("xla")).square().sum().backward()
        results.append([p.grad for p in net.parameters()])
    assert [grad is None for grad in results[0]] == [grad is None for grad in results[1]]
    for a, b in zip(*results, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_no_layers():
    x = torch.ones(2, device="xla")
    assert scan_layers([], x) is x


def test_a_pure_layer_runs_its_python_once_a_kind():
    class Counted(nn.Linear):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return super().forward(x)

    torch.manual_seed(0)
    net = [Counted(2, 2).to("xla") for _ in range(3)]
    found = []
    with torch.no_grad():
        for rows in (1, 1, 2):
            for layer in net:
                layer.weight.mul_(1.1)
            found.append(scan_layers(net, torch.ones(rows, 2, device="xla"), is_layer_pure=True)[0].tolist())
    assert Counted.calls == 2 and found[0] != found[1] != found[2]


def other(**changes):
    made = Block(**changes).double()
    return made.to("xla")


DIFFERENT = {
    "classes": (lambda first: nn.Sequential(nn.Linear(6, 6).to("xla")), r"layer 1 has mismatched keys. Missing keys: \['bias', 'weight'\]"),
    "shapes": (lambda first: nn.Linear(6, 7).to("xla"), "Shape mismatch for 'weight' in layer 1"),
    "a rate": (lambda first: other(rate=0.5), r"drop\.p is 0\.5, there it is 0\.3"),
    "a mode": (lambda first: other().eval(), "evaluation mode"),
    "a dtype": (lambda first: other().float(), "Shape mismatch for 'norm.weight' in layer 1: expected .*float64, got .*float32"),
    "a buffer": (lambda first: with_buffer(other()), "mismatched keys"),
    "another device": (lambda first: Block().double(), "a layer's norm.weight.* is a tensor on cpu"),
}


def with_buffer(layer):
    layer.register_buffer("more", torch.ones(1, device="xla"))
    return layer


@pytest.mark.parametrize("name", DIFFERENT)
def test_layers_that_differ(name):
    make, message = DIFFERENT[name]
    first = nn.Linear(6, 6).to("xla") if name in ("shapes", "classes") else other()
    with pytest.raises((ValueError, TypeError), match=message):
        scan_layers([first, make(first)], X.to("xla"))


def test_copies_of_a_layer_are_alike():
    layer = other()
    assert scan_layers([layer, copy.deepcopy(layer)], X.to("xla")).shape == X.shape
