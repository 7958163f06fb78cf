"""An optimizer's step is one recorded operation a group, from the first step on; its state stays what PyTorch's is."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import surestep
from both import compare
from surestep.loop.updates import RULES

KINDS = {
    "SGD": lambda p, **o: torch.optim.SGD(p, **{"lr": 0.1, **o}),
    "SGD with momentum": lambda p, **o: torch.optim.SGD(p, **{"lr": 0.1, "momentum": 0.9, "nesterov": True, **o}),
    "Adam": lambda p, **o: torch.optim.Adam(p, **{"lr": 0.1, "amsgrad": True, **o}),
    "AdamW": lambda p, **o: torch.optim.AdamW(p, **{"lr": 0.1, **o}),
    "RMSprop": lambda p, **o: torch.optim.RMSprop(p, **{"centered": True, "momentum": 0.9, **o}),
    "Adagrad": lambda p, **o: torch.optim.Adagrad(p, **{"lr_decay": 0.1, **o}),
    "Adadelta": lambda p, **o: torch.optim.Adadelta(p, **o),
    "Adamax": lambda p, **o: torch.optim.Adamax(p, **o),
    "RAdam": lambda p, **o: torch.optim.RAdam(p, **o),
    "NAdam": lambda p, **o: torch.optim.NAdam(p, **o),
    "Rprop": lambda p, **o: torch.optim.Rprop(p, **o),
    "ASGD": lambda p, **o: torch.optim.ASGD(p, **o),
    "Adafactor": lambda p, **o: torch.optim.Adafactor(p, **o),
}


TWO = ("Rprop", "ASGD", "Adafactor")  # programs: their first step records state that isn't zeros like a parameter


def model(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 1)).double().to(device)


def data(device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 4, dtype=torch.float64, generator=generator).to(device)


def step(net, optimizer, x):
    with surestep.step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_one_program_from_the_first_step(kind):
    net = model("xla")
    optimizer = KINDS[kind](net.parameters())
    x = data("xla")
    surestep.sync()
    surestep.clear_metrics()
    for _ in range(5):
        step(net, optimizer, x)
    assert surestep.metrics().compile.count <= 1 + (kind in TWO)  # none, where another test has made the program
    assert surestep.metrics().run.count == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_compiles_nothing(kind):
    net = model("xla")
    optimizer = KINDS[kind](net.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = data("xla")
    surestep.sync()
    surestep.clear_metrics()
    for _ in range(5):
        step(net, optimizer, x)
        scheduler.step()
    assert surestep.metrics().compile.count <= 1 + (kind in TWO)


def trained(kind, device, before=None, steps=3):
    net = model(device)
    optimizer = KINDS[kind](net.parameters())
    if before is not None:
        net.load_state_dict(before[0])
        optimizer.load_state_dict(before[1])
    for seed in range(steps):
        step(net, optimizer, data(device, seed))
    return net, optimizer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second"), [("cpu", "xla"), ("xla", "cpu"), ("xla", "xla")])
def test_a_checkpoint_goes_either_way(kind, first, second):
    def saved(device):
        net, optimizer = trained(kind, device)
        file = io.BytesIO()
        torch.save((net.state_dict(), optimizer.state_dict()), file)
        file.seek(0)
        return torch.load(file, weights_only=True, map_location="cpu")

    truth, _ = trained(kind, "cpu", saved("cpu"))
    net, _ = trained(kind, second, saved(first))
    for expected, found in zip(truth.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_pytorchs(kind):
    _, truth = trained(kind, "cpu")
    _, optimizer = trained(kind, "xla")
    expected, found = truth.state_dict(), optimizer.state_dict()
    assert expected["param_groups"] == found["param_groups"]
    assert expected["state"].keys() == found["state"].keys()
    for number, state in expected["state"].items():
        assert state.keys() == found["state"][number].keys()
        for name, value in state.items():
            torch.testing.assert_close(found["state"][number][name].cpu(), value, rtol=1e-9, atol=1e-9)
    copy.deepcopy(optimizer).step()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_come_and_go(kind):
    """A parameter without a gradient isn't stepped: its count of steps is its own."""

    def run(device):
        net = model(device)
        optimizer = KINDS[kind](net.parameters())
        parameters = list(net.parameters())
        for seed, frozen in enumerate([(0,), (), (1, 2), (0, 5), ()]):
            with surestep.step():
                optimizer.zero_grad()
                for position, p in enumerate(parameters):
                    p.requires_grad_(position not in frozen)
                net(data(device, seed)).square().mean().backward()
                optimizer.step()
        return parameters

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "write", [lambda t: t.add_(3), lambda t: t.copy_(torch.tensor(5.0)), lambda t: t.fill_(2)], ids=["add", "copy", "fill"]
)
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adagrad", "Adamax", "RAdam"])
def test_a_count_that_is_written(kind, write):
    """The counts of a group are equal, until somebody writes one."""

    def run(device):
        net = model(device)
        optimizer = KINDS[kind](net.parameters())
        for seed in range(4):
            step(net, optimizer, data(device, seed))
            if seed == 1:
                write(optimizer.state[net[2].weight]["step"])
        return list(net.parameters())

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_groups_have_their_own_numbers():
    def run(device):
        net = model(device)
        optimizer = torch.optim.AdamW(
            [
                {"params": net[0].parameters(), "lr": 0.1},
                {"params": net[2].parameters(), "weight_decay": 0},
                {"params": net[4].parameters()},
            ],
            lr=0.01,
        )
        for seed in range(4):
            step(net, optimizer, data(device, seed))
            optimizer.param_groups[1]["lr"] *= 0.5
        return list(net.parameters())

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_views_as_parameters(kind):
    """Parameters that lie in one flat buffer, as sharding makes them."""

    def run(device):
        torch.manual_seed(0)
        whole = torch.randn(12, dtype=torch.float64).to(device)
        parts = [nn.Parameter(whole[:6].view(2, 3)), nn.Parameter(whole[6:].view(3, 2))]
        optimizer = KINDS[kind](parts)
        for _ in range(3):
            with surestep.step():
                optimizer.zero_grad()
                (parts[0] @ parts[1]).square().sum().backward()
                optimizer.step()
        return [whole, *(p.detach() for p in parts)]

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_half_precision_state():
    def run(device):
        net = model("cpu").to(device, torch.bfloat16)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for seed in range(3):
            step(net, optimizer, data(device, seed).bfloat16())
        return [p.detach().float() for p in net.parameters()]

    compare(run("cpu"), run("xla"), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "change",
    [lambda o: o.param_groups[0].update(maximize=True), lambda o: o.param_groups[0].update(weight_decay=0.1)],
    ids=["maximize", "decay"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_options_may_change(kind, change):
    def run(device):
        net = model(device)
        optimizer = KINDS[kind](net.parameters())
        for seed in range(4):
            step(net, optimizer, data(device, seed))
            if seed == 1:
                change(optimizer)
        return list(net.parameters())

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_a_tensor_as_learning_rate():
    """Not one operation: PyTorch's own code, as it is."""

    def run(device):
        net = model(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1))
        for seed in range(3):
            step(net, optimizer, data(device, seed))
        return list(net.parameters())

    compare(run("cpu"), run("xla"), rtol=1e-7, atol=1e-7)


def test_the_functional_form_keeps_the_callers_counts():
    from torch.optim.adam import adam

    param, grad = torch.ones(3, device="xla"), torch.ones(3, device="xla")
    exp_avg, exp_avg_sq, count = torch.zeros(3, device="xla"), torch.zeros(3, device="xla"), torch.tensor(0.0)
    adam(
        [param], [grad], [exp_avg], [exp_avg_sq], [], [count],
        amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1, weight_decay=0.0, eps=1e-8, maximize=False,
    )  # fmt: skip
    assert count.item() == 1
    torch.testing.assert_close(param.cpu(), torch.full((3,), 0.9))


def test_a_parameter_that_a_graph_needs_says_so():
    """In-place on a tensor that a graph has saved: PyTorch's own error at the second backward."""
    weight = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loss = (weight * weight).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_every_rule_is_tried():
    kinds = {"SGD": "sgd", "Adam": "adam", "AdamW": "adam", "SGD with momentum": "sgd"}
    assert {kinds.get(kind, kind.lower()) for kind in KINDS} == RULES.keys()


@pytest.mark.parametrize("kind", ["SGD", "SGD with momentum", "AdamW"])
@pytest.mark.parametrize("tie", ["whole", "transposed", "a part", "apart"])
def test_parameters_over_one_storage_are_updated_one_after_the_other(kind, tie):
    """Two parameters, tied by ``.data =``: the second's update sees the first's, as on the CPU."""

    def run(device):
        buffer = torch.arange(1.0, 13, dtype=torch.float64).to(device)
        one, other = nn.Parameter(buffer[:6].view(2, 3)), nn.Parameter(torch.zeros(2, 3, dtype=torch.float64).to(device))
        other.data = {
            "whole": lambda: one.data,
            "transposed": lambda: one.data.t(),
            "a part": lambda: buffer[3:9].view(2, 3),
            "apart": lambda: buffer[6:].view(2, 3),
        }[tie]()
        optimizer = KINDS[kind]([one, other])
        for number in range(3):
            with surestep.step():
                optimizer.zero_grad()
                (one.square().sum() + (number + 1) * other.sin().sum()).backward()
                optimizer.step()
        return one.detach(), other.detach(), buffer

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_a_gradient_that_is_another_parameter():
    def run(device):
        one, other = (nn.Parameter(torch.full((3,), value, dtype=torch.float64).to(device)) for value in (2.0, 1.0))
        one.grad, other.grad = other.detach(), one.detach()
        optimizer = torch.optim.SGD([one, other], lr=0.1)
        for _ in range(2):
            optimizer.step()
        return one.detach(), other.detach()

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_fused_is_one_operation_too(metrics, kind, options):
    """It is the default of transformers' Trainer. PyTorch has a list of devices that may."""
    torch.manual_seed(0)
    truth = torch.nn.Linear(4, 4).double()
    model = torch.nn.Linear(4, 4).double()
    model.load_state_dict(truth.state_dict())
    model.to("xla")
    theirs, ours = (kind(one.parameters(), lr=0.05, fused=True, **options) for one in (truth, model))
    for step in range(5):
        x = torch.randn(3, 4, dtype=torch.float64)
        for one, optimizer, given in ((truth, theirs, x), (model, ours, x.to("xla"))):
            optimizer.zero_grad()
            one(given).square().sum().backward()
            optimizer.step()
        if step == 2:
            ours.load_state_dict(theirs.state_dict())
    for mine, other in zip(model.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-9, atol=1e-12)
    assert not metrics().fallbacks


def test_a_fused_step_takes_the_scale_away(metrics):
    torch.manual_seed(0)
    truth = torch.nn.Linear(4, 4)
    model = torch.nn.Linear(4, 4)
    model.load_state_dict(truth.state_dict())
    model.to("xla")
    theirs, ours = torch.optim.AdamW(truth.parameters(), lr=0.05), torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    scaler = torch.amp.GradScaler("xla", init_scale=2.0**10)
    for step in range(4):
        x = torch.randn(3, 4)
        theirs.zero_grad()
        truth(x).square().sum().backward()
        ours.zero_grad()
        scaler.scale(model(x.to("xla")).square().sum()).backward()
        if step == 2:
            model.weight.grad[0, 0] = torch.inf
        else:
            theirs.step()
        scaler.step(ours)
        scaler.update()
    assert scaler.get_scale() == 2.0**9
    for mine, other in zip(model.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other)
    assert ours.state[model.weight]["step"].item() == 3
    assert not metrics().fallbacks


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Adafactor"])  # which has no such option
def test_autograd_looks_through_a_differentiable_step(kind):
    """SGD's function isn't told of it: the gradient by the gradient was lost."""

    def differentiated(device):
        before, slope = (data(device, seed).requires_grad_() for seed in (1, 2))
        parameter = before.clone()
        parameter.grad = slope * 2
        KINDS[kind]([parameter], differentiable=True).step()
        return torch.autograd.grad(parameter.square().sum(), (before, slope), allow_unused=True)

    for theirs, ours in zip(differentiated("cpu"), differentiated("xla"), strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours.cpu(), theirs)
