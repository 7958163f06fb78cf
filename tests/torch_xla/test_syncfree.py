"""Optimizers that step under a GradScaler without reading whether gradients overflowed."""

import pytest
import torch

import surestep
from surestep.torch_xla.amp import syncfree
from surestep.torch_xla.core import xla_model as xm

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


def stepped(kind, flags, step, **options):
    """The weights after steps, of which those with a flag change nothing."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], device="xla"))
    optimizer = kind([weight], **options)
    for flag in flags:
        optimizer.zero_grad()
        (weight * torch.tensor(BAD if flag else GOOD, device="xla")).sum().backward()
        step(optimizer, flag)
        surestep.sync()
    return weight.detach().cpu()


def plainly(optimizer, flag):
    if not flag:
        optimizer.step()


def by_a_tensor(optimizer, flag):
    optimizer.step(found_inf=torch.tensor(float(flag), device="xla"))


def by_xm(optimizer, flag):
    xm.optimizer_step(optimizer, optimizer_args={"found_inf": torch.tensor(float(flag), device="xla")})


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("step", [by_a_tensor, by_xm])
def test_a_step_is_told_on_the_device_to_do_nothing(name, step, metrics):
    kind, flags = getattr(syncfree, name), [1, 0, 1, 0]
    plain = stepped(getattr(torch.optim, name), flags, plainly, **OPTIONS[name])
    before = metrics().transfer_out.count
    torch.testing.assert_close(stepped(kind, flags, step, **OPTIONS[name]), plain)
    assert metrics().transfer_out.count == before + 1
    torch.testing.assert_close(stepped(kind, flags, plainly, **OPTIONS[name]), plain)


def test_what_tells_it_is_one_number_on_the_device():
    optimizer = syncfree.SGD([torch.nn.Parameter(torch.ones(2, device="xla"))], lr=0.1)
    with pytest.raises(ValueError, match=r"without dimensions, and has the shape \[1\]"):
        optimizer.step(found_inf=torch.zeros(1, device="xla"))
    with pytest.raises(TypeError, match="must be a tensor on the xla device"):
        optimizer.step(found_inf=torch.zeros(()))


@pytest.mark.parametrize("name", OPTIONS)
def test_hooks_are_called_once(name):
    kind = getattr(torch.optim, name)
    kind([torch.nn.Parameter(torch.ones(2))])  # PyTorch has put its hooks around the step of the base class
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = getattr(syncfree, name)([weight], lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    weight.grad = torch.ones(2, device="xla")
    optimizer.step()
    assert calls == [1]


@pytest.mark.parametrize("arguments", [{}, {"optimizer_args": {"found_inf": 0.0}}, {"optimizer_args": {"found_inf": 1.0}}])
def test_a_compiled_step(arguments):
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = syncfree.SGD([weight], lr=0.25)
    given = {name: {key: torch.tensor(value, device="xla") for key, value in each.items()} for name, each in arguments.items()}

    @surestep.compile
    def step():
        optimizer.zero_grad()
        weight.sum().backward()
        xm.optimizer_step(optimizer, **given)

    for _ in range(4):
        step()
    assert weight.tolist() == ([1.0, 1.0] if arguments.get("optimizer_args", {}).get("found_inf") else [0.0, 0.0])
