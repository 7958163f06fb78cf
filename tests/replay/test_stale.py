"""Compiled steps whose Python state changes: whatever it is, each call gives what plain PyTorch gives on the CPU.

Each case makes a step and what happens to its state between calls. ``replayed`` says whether the step must come to be replayed, must never
be, or may.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steps import Case, Cases, beside, model, plain_step, run, same, trained

CASES = Cases()
case = CASES.case


# Steps that are replayed, and what is changed between


@case(True)
def nothing_changes(device):
    net, optimizer = trained(device)
    return Case(plain_step(net, optimizer), state=lambda: list(net.parameters()))


for _name, _make in {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "radam": torch.optim.RAdam,
    "nadam": torch.optim.NAdam,
    "rprop": torch.optim.Rprop,
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05, t0=4, weight_decay=0.1),
    "adafactor": torch.optim.Adafactor,
}.items():

    def _kind(device, make=_make):
        net, optimizer = trained(device, make)
        return Case(
            plain_step(net, optimizer),
            state=lambda: [*net.parameters(), *(s["step"] for s in optimizer.state.values() if "step" in s)],
        )

    CASES[f"optimizer_{_name}"] = _kind, True


@case(True)
def a_schedule(device):
    net, optimizer = trained(device, lambda p: torch.optim.AdamW(p, lr=0.05))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return Case(plain_step(net, optimizer), lambda i: schedule.step(), lambda: list(net.parameters()))


@case(True)
def the_learning_rate_by_hand(device):
    net, optimizer = trained(device)
    return Case(plain_step(net, optimizer), lambda i: optimizer.param_groups[0].update(lr=0.1 / (i + 1)), lambda: list(net.parameters()))


@case(True)
def a_count_of_steps_is_written(device):
    net, optimizer = trained(device, lambda p: torch.optim.AdamW(p, lr=0.05))

    def between(i):
        if i == 6:
            optimizer.state[net[2].bias]["step"].add_(4)

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def weight_decay_begins(device):
    net, optimizer = trained(device)
    return Case(
        plain_step(net, optimizer),
        lambda i: optimizer.param_groups[0].update(weight_decay=0.1 if i > 5 else 0),
        lambda: list(net.parameters()),
    )


@case(True)
def a_parameter_is_frozen(device):
    net, optimizer = trained(device)
    return Case(plain_step(net, optimizer), lambda i: net[0].weight.requires_grad_(i % 6 < 3), lambda: list(net.parameters()))


@case(True)
def a_parameter_is_replaced(device):
    net, optimizer = trained(device)

    def between(i):
        if i == 5:
            net[0].weight = nn.Parameter(torch.ones(8, 4, dtype=torch.float64, device=device))
            optimizer.param_groups[0]["params"] = list(net.parameters())

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def data_is_replaced(device):
    net, optimizer = trained(device)

    def between(i):
        if i % 4 == 0:
            net[0].weight.data = torch.full((8, 4), 0.1 * i, dtype=torch.float64, device=device)

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def values_are_written_from_outside(device):
    net, optimizer = trained(device)

    def between(i):
        if i % 4 == 0:
            with torch.no_grad():
                net[0].weight.mul_(0.5)
                net[2].bias[0] = 3.0

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def a_group_is_added(device):
    net, optimizer = trained(device)
    extra = nn.Linear(2, 1).double().to(device)
    with torch.no_grad():
        for p in extra.parameters():
            p.fill_(0.1)
    parts = [net]

    def step(x):
        optimizer.zero_grad()
        for part in parts:
            x = part(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        if i == 5:
            parts.append(extra)
            optimizer.add_param_group({"params": extra.parameters(), "lr": 0.01})

    return Case(step, between, lambda: [*net.parameters(), *extra.parameters()])


@case(True)
def weights_are_tied(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def between(i):
        if i == 5:
            net[2].weight = net[0].weight

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def training_and_evaluation(device):
    net = model(device, nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Case(plain_step(net, optimizer), lambda i: net.train(i % 6 < 4), lambda: [*net.parameters(), *net.buffers()])


@case(True)
def a_layer_is_changed(device):
    net, optimizer = trained(device)

    def between(i):
        if i == 5:
            net[1] = nn.ReLU()

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def a_module_attribute(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model(device)
            self.factor = 1.0

        def forward(self, x):
            return self.inner(x) * self.factor

    net, optimizer = trained(device, net=Net())

    def between(i):
        net.factor = 1.0 if i < 5 else 0.5

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(None)
def a_hook_is_added(device):
    net, optimizer = trained(device)
    seen = []

    def between(i):
        if i == 6:
            net[0].register_forward_hook(lambda module, args, output: seen.append(1) or output * 2)
        if i == 10:
            net[2].weight.register_hook(lambda grad: grad * 0.5)

    return Case(plain_step(net, optimizer), between, lambda: [len(seen), *net.parameters()])


@case(True)
def a_hook_on_gradients(device):
    net, optimizer = trained(device)

    def between(i):
        if i == 6:
            net[2].weight.register_post_accumulate_grad_hook(halve)

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


def halve(p):
    p.grad.mul_(0.5)


@case(True)
def a_closure_constant(device):
    net, optimizer = trained(device)
    factor = 1.0

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) * factor).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        nonlocal factor
        factor = 1.0 if i < 6 else 2.0

    return Case(step, between, lambda: list(net.parameters()))


GLOBAL = [1.0]


@case(True)
def an_element_of_a_global_list(device):
    net, optimizer = trained(device)
    GLOBAL[0] = 1.0

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) * GLOBAL[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        GLOBAL[0] = 1.0 if i < 6 else 2.0

    return Case(step, between, lambda: list(net.parameters()))


@case(True)
def a_config_dict(device):
    net, optimizer = trained(device)
    config = {"loss": {"scale": 1.0}}

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean() * config["loss"]["scale"]
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        config["loss"]["scale"] = 1.0 if i < 6 else 2.0

    return Case(step, between, lambda: list(net.parameters()))


@case(True)
def a_python_number_as_argument(device):
    net, optimizer = trained(device)

    def inner(x, scale):
        optimizer.zero_grad()
        loss = (net(x) * scale).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    count = itertools.count()
    inner.scaled = lambda compiled: lambda x: compiled(x, 1.0 if next(count) < 8 else 0.5)
    return Case(inner, state=lambda: list(net.parameters()))


@case(True)
def gradients_are_accumulated(device):
    net, optimizer = trained(device)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    def between(i):
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return Case(step, between, lambda: [*net.parameters(), *(p.grad for p in net.parameters() if p.grad is not None)])


@case(True)
def gradients_are_zeroed_at_the_end(device):
    net, optimizer = trained(device)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def gradients_are_filled_with_zeros(device):
    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: [*net.parameters(), *(p.grad for p in net.parameters())])


@case(True)
def an_old_gradient_is_kept(device):
    net, optimizer = trained(device)
    kept = []
    return Case(
        plain_step(net, optimizer), lambda i: kept.append(net[0].weight.grad if i % 2 else net[0].weight.grad.detach()), lambda: list(kept)
    )


@case(True)
def old_results_are_kept(device):
    net, optimizer = trained(device)
    kept = []
    inner = plain_step(net, optimizer)
    inner.scaled = lambda compiled: lambda x: kept.append(compiled(x)) or kept[-1]
    return Case(inner, state=lambda: list(kept))


@case(True)
def a_gradient_is_removed(device):
    net, optimizer = trained(device)

    def between(i):
        if i % 5 == 4:
            net[0].weight.grad = None

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, between, lambda: list(net.parameters()))


@case(True)
def clipped(device):
    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return loss.detach(), norm

    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def two_optimizers(device):
    generator, discriminator = model(device), nn.Linear(2, 1).double().to(device)
    with torch.no_grad():
        for p in discriminator.parameters():
            p.fill_(0.3)
    one, two = torch.optim.Adam(generator.parameters(), lr=0.01), torch.optim.Adam(discriminator.parameters(), lr=0.02)

    def step(x):
        two.zero_grad()
        fake = generator(x)
        loss = F.softplus(discriminator(fake.detach())).mean()
        loss.backward()
        two.step()
        one.zero_grad()
        other = F.softplus(-discriminator(fake)).mean()
        other.backward()
        one.step()
        return {"d": loss.detach(), "g": other.detach()}

    return Case(step, state=lambda: [*generator.parameters(), *discriminator.parameters()])


@case(True)
def a_moving_average_of_weights(device):
    net, optimizer = trained(device)
    average = model(device)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), average.parameters(), strict=True):
                q.mul_(0.9).add_(p, alpha=0.1)
        return loss.detach()

    return Case(step, state=lambda: list(average.parameters()))


@case(True)
def metrics_in_tensors(device):
    class Metrics:
        def __init__(self):
            self.total = torch.zeros((), dtype=torch.float64, device=device)
            self.count = torch.zeros((), dtype=torch.int64, device=device)

    net, optimizer = trained(device)
    metrics = Metrics()

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        metrics.total += loss.detach()
        metrics.count.add_(x.shape[0])
        return loss.detach()

    return Case(step, state=lambda: [metrics.total, metrics.count, *net.parameters()])


@case(True)
def batches_of_two_sizes(device):
    net, optimizer = trained(device)
    inner = plain_step(net, optimizer)
    count = itertools.count()
    inner.scaled = lambda compiled: lambda x: compiled(x if next(count) % 3 else x[:2])
    return Case(inner, state=lambda: list(net.parameters()))


@case(True)
def the_model_as_argument(device):
    net, optimizer = trained(device)

    def step(net, optimizer, x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step.scaled = lambda compiled: lambda x: compiled(net, optimizer, x)
    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def a_batch_that_is_a_dict(device):
    net, optimizer = trained(device)

    def step(batch, *, factor=1.0):
        optimizer.zero_grad()
        loss = (net(batch["x"]) * batch.get("scale", factor)).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "n": len(batch)}

    step.scaled = lambda compiled: lambda x: compiled({"x": x}, factor=0.5)
    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def a_method(device):
    class Trainer:
        def __init__(self):
            self.net, self.optimizer = trained(device)
            self.scale = 1.0

        def loss(self, x):
            return (self.net(x) * self.scale).square().mean()

        def step(self, x):
            self.optimizer.zero_grad()
            loss = self.loss(x)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()

    def between(i):
        trainer.scale = 1.0 if i < 6 else 0.3

    return Case(trainer.step, between, lambda: list(trainer.net.parameters()))


@case(True)
def checkpointed(device):
    from torch.utils.checkpoint import checkpoint

    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        hidden = checkpoint(net[0], x, use_reentrant=False)
        loss = net[2](net[1](hidden)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def an_autograd_function(device):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.factor = 2.0
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * ctx.factor

    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        loss = Double.apply(net(x)).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def evaluation_only(device):
    net = model(device)

    @torch.no_grad()
    def step(x):
        return net(x).softmax(-1)

    return Case(step, lambda i: net.train(i % 4 < 2))


@case(True)
def a_loop_over_layers(device):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.depth = 3

        def forward(self, x):
            states = []
            for number, layer in enumerate(self.layers):
                if number >= self.depth:
                    break
                x = torch.tanh(layer(x)) + x
                states.append(x)
            return torch.stack(states).sum(0)

    net = Net().double().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def between(i):
        net.depth = 3 if i < 6 else 2

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def an_option_with_a_branch(device):
    net, optimizer = trained(device)
    options = type("Options", (), {})()
    options.absolute = False

    def step(x):
        optimizer.zero_grad()
        out = net(x)
        loss = out.abs().mean() if options.absolute else out.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        options.absolute = i > 5

    return Case(step, between, lambda: list(net.parameters()))


@case(True)
def the_optimizers_state_is_loaded(device):
    net, optimizer = trained(device, lambda p: torch.optim.AdamW(p, lr=0.05))
    saved = []

    def between(i):
        if i == 4:
            saved.append((torch_copy(net.state_dict()), torch_copy(optimizer.state_dict())))
        if i == 8:
            net.load_state_dict(saved[0][0])
            optimizer.load_state_dict(saved[0][1])

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


def torch_copy(value):
    import copy

    return copy.deepcopy(value)


# What a tester has broken: each of these was replayed when it was not the same any more


@case(True)
def gradients_are_scaled_where_there_are_any(device):
    net, optimizer = trained(device)
    config = {"scale": 0.5}

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        for p in net.parameters():
            if p.grad is not None:
                p.grad.mul_(config["scale"])
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Case(step, lambda i: config.update(scale=0.5 if i < 6 else 0.1), lambda: list(net.parameters()))


class Base:
    scale = 2.0

    def times(self, x):
        return x * self.scale


@case(True)
def a_subclass_gets_an_attribute(device):
    child = type("Child", (Base,), {})
    thing = child()

    def between(i):
        if i == 6:
            child.scale = 5.0
        if i == 10:
            child.times = lambda self, x: x * 7

    return Case(lambda x: thing.times(x), between)


@case(True)
def a_base_class_comes_in_between(device):
    middle = type("Middle", (Base,), {})

    class Child(middle):
        def times(self, x):
            return super().times(x) + 1

    thing = Child()

    def between(i):
        if i == 6:
            middle.times = lambda self, x: x * 9

    return Case(lambda x: thing.times(x), between)


@case(True)
def a_flag_on_a_parameter(device):
    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        for p in net.parameters():
            if getattr(p, "decay", False):
                loss = loss + p.square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(i):
        if i == 6:
            net[0].weight.decay = True

    return Case(step, between, lambda: list(net.parameters()))


@case(None)
def a_dtypes_own_attribute(device):
    config = {"a": 2.0, "b": 3.0}

    def step(x):
        return x * config["a"] if x.long().dtype.is_floating_point else x * config["b"]

    return Case(step, lambda i: config.update(b=3.0 if i < 6 else 7.0))


@case(False)
def an_outside_list_is_returned(device):
    history = [1]
    return Case(lambda x: (x * 2, history), lambda i: history.append(i))


@case(None)
def arguments_that_are_the_same(device):
    def step(a, b, c):
        return a - 2 * b + 3 * c

    count = itertools.count()
    step.scaled = lambda compiled: lambda x: compiled(x, x, x + 1) if next(count) < 7 else compiled(x, x + 1, x + 1)
    return Case(step)


@case(None)
def a_tensor_from_outside_as_argument(device):
    weight = torch.full((3, 4), 2.0, dtype=torch.float64).to(device)

    def step(x):
        return x * weight

    count = itertools.count()
    step.scaled = lambda compiled: lambda x: compiled(weight if next(count) < 7 else x)
    return Case(step)


@case(False)
def a_view_of_what_was_written_is_returned(device):
    buffer = torch.zeros(3, 4, dtype=torch.float64).to(device)
    seen = []

    def step(x):
        buffer.add_(x)
        return buffer.detach()

    step.scaled = lambda compiled: lambda x: seen.append(compiled(x)) or seen[-1].clone()
    return Case(step, state=lambda: [buffer, *seen])


@case(False)
def gradients_are_returned(device):
    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach(), [p.grad for p in net.parameters()]

    def outside(compiled):
        def call(x):
            loss, grads = compiled(x)
            for grad in grads:
                grad.mul_(0.1)
            optimizer.step()
            return loss

        return call

    step.scaled = outside
    return Case(step, state=lambda: list(net.parameters()))


@case(False)
def a_count_in_finally(device):
    counts = []

    def step(x):
        try:
            return x * 2
        finally:
            counts.append(1)

    return Case(step, state=lambda: len(counts))


@case(None)
def keyword_defaults_are_replaced(device):
    def helper(x, *, scale=2.0):
        return x * scale

    def between(i):
        if i == 5:
            helper.__kwdefaults__ = {"scale": 5.0}
        if i == 9:
            helper.__kwdefaults__["scale"] = 7.0

    return Case(lambda x: helper(x), between)


@case(None)
def a_partials_keywords(device):
    def helper(x, scale):
        return x * scale

    bound = functools.partial(helper, scale=2.0)
    return Case(lambda x: bound(x), lambda i: bound.keywords.update(scale=2.0 if i < 6 else 5.0))


@case(None)
def a_partials_state(device):
    def helper(x, shift, scale):
        return x * scale + shift

    def other(x, shift, scale):
        return x - scale - shift

    bound = functools.partial(helper, shift=0.5, scale=2.0)

    def between(i):
        if i == 5:
            bound.__setstate__((helper, (), {"scale": 3.0, "shift": 1.0}, {}))
        if i == 8:
            bound.__setstate__((other, (), bound.keywords, {}))

    return Case(lambda x: bound(x), between)


@case(False)
def a_partial_of_the_users_own(device):
    class Own(functools.partial):
        scale = 1.0

        def __call__(self, *args):
            return super().__call__(*args) * self.scale

    bound = Own(lambda x: x + 1)

    def between(i):
        if i == 5:
            Own.scale = 2.0

    return Case(lambda x: bound(x), between)


@case(None)
def numbers_of_numpy(device):
    count = np.array(2)

    def between(i):
        if i == 6:
            count[...] = 1

    return Case(lambda x: x[:count], between)


@case(None)
def functions_of_pytorchs_are_replaced(device):
    before = F.relu

    def between(i):
        F.relu = before if i < 6 or i > 9 else (lambda x: x * 3)

    return Case(lambda x: F.relu(x), between)


@case(None)
def a_layers_own_method_is_replaced(device):
    torch.manual_seed(0)
    layer = nn.Conv1d(1, 1, 1).double().to(device)

    def between(i):
        if i == 6:
            layer._conv_forward = lambda x, weight, bias: x * 9

    def step(x):
        with torch.no_grad():
            return layer(x.unsqueeze(1))

    return Case(step, between)


@case(None)
def constants_made_inside(device):
    def step(x):
        return x * torch.tensor(2.0, device=x.device, dtype=x.dtype) + x[[0, 2]].sum()

    return Case(step)


@case(None)
def nothing_is_recorded_at_some_calls(device):
    net, optimizer = trained(device)

    def step(x, do):
        if do:
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    count = itertools.count()
    step.scaled = lambda compiled: lambda x: compiled(x, next(count) % 2 == 0)
    return Case(step, state=lambda: list(net.parameters()))


@case(None)
def dict_keys_of_two_kinds(device):
    def step(batch):
        return torch.stack([value * key for key, value in batch.items()]).sum(0)

    count = itertools.count()
    step.scaled = lambda compiled: lambda x: compiled({1: x.long()} if next(count) < 7 else {1.0: x.long()})
    return Case(step)


@case(None)
def gradients_that_share_memory(device):
    net, _ = trained(device)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    def between(i):
        if i == 6:
            net[0].weight.grad = net[0].weight.grad.clone()
            net[0].bias.grad = net[2].weight.grad.flatten()[:8]

    return Case(step, between, lambda: [p.grad for p in net.parameters()])


# Steps that must not be replayed


@case(False)
def a_counter_in_a_list(device):
    net, optimizer = trained(device)
    calls = []

    def step(x):
        calls.append(1)
        optimizer.zero_grad()
        loss = (net(x) / len(calls)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: [len(calls), *net.parameters()])


@case(False)
def a_counter_on_self(device):
    class Trainer:
        def __init__(self):
            self.net, self.optimizer = trained(device)
            self.count = 0

        def step(self, x):
            loss = self.net(x).square().mean()
            loss.backward()
            self.count += 1
            if self.count % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    return Case(trainer.step, state=lambda: [trainer.count, *trainer.net.parameters()])


COUNT = 0


@case(False)
def a_global_counter(device):
    net, optimizer = trained(device)
    global COUNT
    COUNT = 0

    def step(x):
        global COUNT
        COUNT += 1
        optimizer.zero_grad()
        loss = (net(x) / COUNT).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: [COUNT, *net.parameters()])


@case(False)
def a_nonlocal_counter(device):
    net, optimizer = trained(device)
    count = 0

    def step(x):
        nonlocal count
        count += 1
        optimizer.zero_grad()
        loss = (net(x) / count).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: [count])


@case(False)
def a_mutable_default(device):
    net, optimizer = trained(device)

    def step(x, calls=[]):  # noqa: B006
        calls.append(1)
        optimizer.zero_grad()
        loss = (net(x) / len(calls)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step)


@case(False)
def a_counting_property(device):
    class Scale:
        calls = 0

        @property
        def value(self):
            self.calls += 1
            return 1.0 / self.calls

    net, optimizer = trained(device)
    scale = Scale()

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) * scale.value).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: [scale.calls])


@case(False)
def a_counting_getattr(device):
    class Scale:
        def __init__(self):
            self.calls = 0

        def __getattr__(self, name):
            self.calls += 1
            return 1.0 / self.calls

    net, _ = trained(device)
    scale = Scale()
    return Case(lambda x: (net(x) * scale.value).detach(), state=lambda: [scale.calls])


@case(False)
def a_generator_is_advanced(device):
    net, _ = trained(device)
    numbers = itertools.count(1)
    return Case(lambda x: (net(x) * next(numbers)).detach())


@case(False)
def python_random(device):
    net, _ = trained(device)
    random.seed(0)
    draws = random.Random(3)

    def step(x):
        return (net(x) * draws.random()).detach()

    return Case(step)


@case(False)
def the_random_module(device):
    random.seed(7)
    net, _ = trained(device)

    def step(x):
        if random.random() < 0.5:
            x = x * 2
        return net(x).detach()

    return Case(step)


@case(False)
def numpy_random(device):
    np.random.seed(7)
    net, _ = trained(device)

    def step(x):
        return (net(x) * float(np.random.rand())).detach()

    return Case(step)


@case(False)
def a_host_draw(device):
    torch.manual_seed(3)
    net, _ = trained(device)
    draws = torch.Generator().manual_seed(5)

    def step(x):
        return (net(x) * torch.rand((), generator=draws, dtype=torch.float64).item()).detach()

    return Case(step)


@case(False)
def a_host_tensor_is_written(device):
    net, _ = trained(device)
    count = torch.zeros(())

    def step(x):
        count.add_(1)
        return (net(x) * count).detach()

    return Case(step, state=lambda: [count.item()])


@case(False)
def a_host_number_is_read(device):
    net, _ = trained(device)
    scale = torch.ones((), dtype=torch.float64)

    def step(x):
        return (net(x) * scale).detach()

    return Case(step, lambda i: scale.mul_(1.1))


@case(False)
def a_value_is_read(device):
    net, optimizer = trained(device)
    seen = []

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        return loss.detach()

    return Case(step, state=lambda: list(seen))


@case(False)
def a_branch_on_a_value(device):
    net, optimizer = trained(device)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        if loss > 0.05:
            loss = loss * 2
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Case(step, state=lambda: list(net.parameters()))


@case(False)
def the_clock(device):
    net, _ = trained(device)
    times = []

    def step(x):
        times.append(time.perf_counter())
        return net(x).detach()

    return Case(step, state=lambda: len(times))


@case(True)
def a_scheduler_inside(device):
    net, optimizer = trained(device)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return Case(step, state=lambda: [optimizer.param_groups[0]["lr"], *net.parameters()])


@case(False)
def a_tensor_is_kept_on_self(device):
    class Trainer:
        def __init__(self):
            self.net, _ = trained(device)
            self.previous = None

        def step(self, x):
            out = self.net(x)
            result = out if self.previous is None else out + self.previous
            self.previous = out.detach()
            return result.detach()

    trainer = Trainer()
    return Case(trainer.step, state=lambda: [trainer.previous])


@case(False)
def a_forward_that_counts(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model(device)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.inner(x) * self.calls

    net, optimizer = trained(device, net=Net())
    return Case(plain_step(net, optimizer), state=lambda: [net.calls])


@case(False)
def a_hook_that_counts(device):
    net, optimizer = trained(device)
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    return Case(plain_step(net, optimizer), state=lambda: [len(seen)])


@case(True)
def a_dict_is_filled(device):
    net, _ = trained(device)
    outputs = {"last": None}
    seen = []

    def step(x):
        outputs["last"] = net(x).detach()
        return outputs["last"] * 2

    return Case(step, lambda i: seen.append(outputs["last"]), lambda: [outputs["last"], *seen])


@case(True)
def the_last_loss_is_kept(device):
    class Trainer:
        def __init__(self):
            self.net, self.optimizer = trained(device)
            self.loss = None

        def step(self, x):
            self.optimizer.zero_grad()
            loss = self.net(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.loss = loss.detach()

    trainer = Trainer()
    seen = []
    return Case(trainer.step, lambda i: seen.append(trainer.loss), lambda: seen)


@case(None)
def what_is_kept_is_read(device):
    net, _ = trained(device)
    last = [torch.zeros((), dtype=torch.float64, device=device)]

    def step(x):
        out = net(x).mean().detach() + last[0]
        last[0] = out
        return out

    return Case(step, state=lambda: last)


@case(False)
def kept_under_a_branch(device):
    net, _ = trained(device)
    last = [None]

    def step(x):
        out = net(x).detach()
        if out.shape[0] > 2:
            last[0] = out
        return out

    step.scaled = lambda compiled: lambda x: compiled(x) if x.sum() > 0 else compiled(x[:2])
    return Case(step, state=lambda: last)


@case(False)
def the_argument_list_grows(device):
    net, _ = trained(device)
    history = []

    def step(x, history):
        out = net(x).detach()
        history.append(out)
        return out

    step.scaled = lambda compiled: lambda x: compiled(x, history)
    return Case(step, state=lambda: list(history))


@case(False)
def an_iterator_argument(device):
    net, _ = trained(device)
    numbers = iter(range(100))

    def step(x, numbers):
        return (net(x) + next(numbers)).detach()

    step.scaled = lambda compiled: lambda x: compiled(x, numbers)
    return Case(step)


@case(False)
def a_cached_function(device):
    net, _ = trained(device)
    calls = []

    @functools.cache
    def scale(n):
        calls.append(n)
        return math.sqrt(n)

    return Case(lambda x: (net(x) * scale(len(x))).detach(), state=lambda: len(calls))


@case(False)
def an_unknown_callable(device):
    class Scale:
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x / self.calls

    net, _ = trained(device)
    scale = Scale()
    return Case(lambda x: scale(net(x)).detach(), state=lambda: [scale.calls])


@case(False)
def an_exception_is_caught(device):
    net, _ = trained(device)
    flags = {"fail": False}

    def check():
        if flags["fail"]:
            raise ValueError

    def step(x):
        try:
            check()
        except ValueError:
            return net(x).detach() * 2
        return net(x).detach()

    return Case(step, lambda i: flags.update(fail=i > 4))


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name):
    beside(*CASES[name])


@pytest.mark.parametrize("name", [name for name, (_, replayed) in CASES.items() if replayed])
def test_verified(name, monkeypatch):
    """Each replay is held against a recording."""
    monkeypatch.setenv("SURESTEP_VERIFY_REPLAY", "1")
    make, _ = CASES[name]
    _, expected, state = run(make, "cpu", 10, False)
    _, found, ours = run(make, "xla", 10, True)
    same(expected, found, "results")
    same(state, ours, "state")
