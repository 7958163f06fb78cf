"""Python that a class says of its objects (operators, truth, texts, iteration), and that is called without its name standing in the step;
and other state that the code doesn't show: gradients of what is frozen, methods of tensors that were replaced, modes.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import typing

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from steps import Case, Cases, beside, f64, model, plain_step, trained

CASES = Cases()
case = CASES.case
STATE = {"factor": 1.0, "on": True}


def change(i):
    STATE.update(factor=1.0 + max(0, i - 4) // 3, on=i % 8 < 5)


class Vector:
    """Whatever is asked of it, it looks at what changes."""

    def __init__(self, of):
        self.of = of

    def scaled(self, *of):
        return self.of * STATE["factor"]

    __mul__ = __rmul__ = __matmul__ = __pow__ = __getitem__ = __neg__ = __abs__ = __sub__ = __radd__ = scaled

    def number(self, *of):
        return STATE["factor"]

    __float__ = __round__ = number

    def __index__(self):
        return 1 if STATE["on"] else 0

    def __bool__(self):
        return STATE["on"]

    def __lt__(self, other):
        return STATE["on"]

    __eq__ = __contains__ = __lt__
    __hash__ = None

    def __len__(self):
        return 2 if STATE["on"] else 3

    def __str__(self):
        return "on" if STATE["on"] else "off"

    def __iter__(self):
        return iter([self.of, self.of * STATE["factor"]])


@dataclasses.dataclass
class Record(Vector):
    of: typing.Any


class Pair(typing.NamedTuple):
    of: typing.Any
    number: float = 1.0

    def __add__(self, other):
        return self.of + STATE["factor"]

    def __bool__(self):
        return STATE["on"]

    def __iter__(self):
        return iter((self.of, self.of * STATE["factor"]))


def chosen(x, condition):
    if condition:
        return x * 2
    return x * 3


OPERATORS = {
    "times": lambda x: Vector(x) * 2,
    "times from the right": lambda x: x * Vector(x),
    "a sum": lambda x: sum([Vector(x), Vector(x)]),
    "minus": lambda x: -Vector(x),
    "abs": lambda x: abs(Vector(x)),
    "a number": lambda x: x * float(Vector(x)),
    "round": lambda x: x * round(Vector(x)),
    "power": lambda x: pow(Vector(x), 2),
    "of the operator module": lambda x: operator.mul(Vector(x), 2),
    "of math": lambda x: x * math.sqrt(Vector(x)),
    "an index": lambda x: x * len(range(Vector(x))),
    "an entry": lambda x: Vector(x)[0],
    "a length": lambda x: x * len(Vector(x)),
    "truth": lambda x: chosen(x, Vector(x)),
    "not": lambda x: chosen(x, not Vector(x)),
    "bool": lambda x: chosen(x, bool(Vector(x))),
    "any": lambda x: chosen(x, any([Vector(x)])),
    "less": lambda x: chosen(x, Vector(x) < Vector(x)),
    "equal": lambda x: chosen(x, Vector(x) == Vector(x)),
    "equal in a list": lambda x: chosen(x, [Vector(x)] == [Vector(x)]),
    "contains": lambda x: chosen(x, 1 in Vector(x)),
    "a text": lambda x: chosen(x, str(Vector(x)) == "on"),
    "a formatted text": lambda x: chosen(x, f"{Vector(x)}" == "on"),
    "a text's format": lambda x: chosen(x, "{}".format(Vector(x)) == "on"),  # noqa: UP032
    "its elements": lambda x: torch.stack([*Vector(x)]),
    "a named tuple plus": lambda x: Pair(x) + Pair(x),
    "a named tuple's truth": lambda x: chosen(x, Pair(x)),
    "a named tuple's elements": lambda x: torch.stack([*Pair(x)]),
}


@pytest.mark.parametrize("what", OPERATORS)
def test_operators_of_the_users_classes(what):
    step = OPERATORS[what]

    def make(device):
        change(0)
        return Case(lambda x: step(x), change)

    beside(make, None)


@pytest.mark.parametrize("kind", [Record, Pair])
def test_arguments_with_operators(kind):
    def make(device):
        change(0)

        def step(v):
            return (v * 2 if kind is Record else v + Pair(v)) + (1.0 if v else 2.0)

        step.scaled = lambda step: lambda x: step(kind(x))
        return Case(step, change)

    beside(make, None)


@case(False)
def an_assertion_that_counts(device):
    count = [0]

    class Counts:
        def __bool__(self):
            count[0] += 1
            return True

    def step(x):
        assert Counts()
        return x * 2

    return Case(step, state=lambda: count)


@case(False)
def a_format_that_counts(device):
    count = [0]

    def width():
        count[0] += 1
        return 3

    def step(x):
        return x * len(f"{1.0:{width()}}")

    return Case(step, state=lambda: count)


@case(True)
def a_formatted_key(device):
    weights = {"w1": 1.0, "w2": 2.0}

    def step(x):
        return sum(x * weights[f"w{k}"] for k in (1, 2))

    def between(i):
        weights["w2"] = 1.0 + max(0, i - 6)

    return Case(step, between)


@case(True)
def texts_of_a_list(device):
    words = ["a"]

    def step(x):
        return x * 2 if "-".join(words) == "a" and "{}".format(words) == "['a']" else x * 3  # noqa: UP032

    def between(i):
        words[0] = "a" if i < 6 else "b"

    return Case(step, between)


@case(False)
def elements_that_say_what_equals_them(device):
    class Any:
        on = True

        def __eq__(self, other):
            return Any.on

        __hash__ = None

    held = [Any()]

    def step(x):
        return x * 2 if 1.0 in held else x * 3

    def between(i):
        Any.on = i < 6

    return Case(step, between)


@case(False)
def a_list_sorted_by_a_function(device):
    signs = {"sign": 1.0}

    def step(x):
        parts = [x, x * 2]
        numbers = [1.0, 2.0]
        numbers.sort(key=lambda number: number * signs["sign"])
        parts.sort(key=lambda part: len(part) * numbers[0])
        return torch.stack(parts) * numbers[0]

    def between(i):
        signs["sign"] = 1.0 if i < 6 else -1.0

    return Case(step, between)


@case(True)
def a_generator_is_evaluated_late(device):
    weights = {"a": 1.0, "b": 2.0}

    def step(x):
        k = 1
        found = (weights["a"] if k > 1 else weights["b"] for _ in range(1))
        k = 2
        return x * sum(found)

    def between(i):
        weights["a"] = 1.0 + (i > 6)

    return Case(step, between)


@case(True)
def a_lambda_in_a_comprehension(device):
    weights = {"a": 1.0, "b": 2.0}

    def step(x):
        scales = [lambda v: v * weights["a"] if k > 1 else v * weights["b"] for k in (1, 2)]  # noqa: B023
        return scales[0](x)

    def between(i):
        weights["a"] = 1.0 + (i > 6)

    return Case(step, between)


@case(True)
def frozen_parameters_with_gradients(device):
    """Half of the time a layer is frozen while its gradient is still there, which `zero_grad` takes away."""
    net, optimizer = trained(device)
    found = []

    def between(i):
        found.append([parameter.grad is None for parameter in net.parameters()])
        net[0].requires_grad_(i % 4 > 1)

    return Case(plain_step(net, optimizer), between, lambda: [found, *net.parameters()])


@case(True)
def frozen_parameters_are_given_gradients(device):
    weight = torch.ones(4, dtype=torch.float64, device=device, requires_grad=True)
    net = model(device)
    optimizer = torch.optim.SGD([weight, *net.parameters()], lr=0.1)
    weight.requires_grad_(False)
    net[0].weight.requires_grad_(False)

    def step(x):
        loss = net(x * weight).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def between(i):
        if i in (6, 8):
            weight.grad = torch.full_like(weight, 0.5)
            net[0].weight.grad = torch.full_like(net[0].weight, 0.5)
        if i == 10:
            weight.grad = net[0].weight.grad = None

    return Case(step, between, lambda: [weight, weight.grad, *net.parameters()])


@case(False)
def a_new_leaf_is_returned(device):
    def step(x):
        return x * 2, torch.ones(2, dtype=torch.float64, device=device, requires_grad=True)

    step.scaled = lambda step: lambda x: [[part, part.requires_grad] for part in step(x)]
    return Case(step)


@case(True)
def derivatives_are_computed_forward(device):
    calls = [0]

    def step(x):
        return x * x

    def scaled(step):
        def call(x):
            calls[0] += 1
            if calls[0] % 5:
                return step(x)
            with forward_ad.dual_level():
                result, tangent = forward_ad.unpack_dual(step(forward_ad.make_dual(x, f64(3, 4, device=device))))
                return [result.clone(), tangent.clone()]

        return call

    step.scaled = scaled
    return Case(step)


class Chosen(nn.Module):
    """A model that says itself which parameters it has."""

    def __init__(self):
        super().__init__()
        self.net, self.every = model("cpu"), 1

    def forward(self, x):
        return self.net(x)


class ByName(Chosen):
    def named_parameters(self, *args, **kwargs):
        yield from list(super().named_parameters(*args, **kwargs))[:: self.every]


class ByTree(Chosen):
    def named_modules(self, *args, **kwargs):
        yield from list(super().named_modules(*args, **kwargs))[: 6 - 2 * self.every]


class InTurn(nn.Sequential):
    every = 1

    def __init__(self):
        super().__init__(*model("cpu"))

    def __iter__(self):
        return iter([part for part in self._modules.values() if self.every == 1 or not isinstance(part, nn.Tanh)])


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("kind", [ByName, ByTree, InTurn])
def test_modules_that_say_what_their_parts_are(kind, inner):
    def make(device):
        net = kind().to(device)
        whole = nn.Sequential(net, nn.Tanh()) if inner else net
        parameters = list(nn.Module.parameters(getattr(net, "net", net)))
        optimizer = torch.optim.SGD(parameters, lr=0.1)

        def step(x):
            for parameter in parameters:
                parameter.grad = None
            loss = whole(x).square().mean()
            loss.backward()
            for parameter in whole.parameters():
                parameter.grad.mul_(0.5)
            optimizer.step()
            return loss.detach()

        def between(i):
            net.every = 1 + (i > 6)

        return Case(step, between, lambda: parameters)

    beside(make, None if inner else False)


@case(True)
def an_apply_of_its_own(device):
    factor = {"of": 1.0}

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

        @classmethod
        def apply(cls, x):
            return super().apply(x * factor["of"])

    def step(x):
        return Scale.apply(x)

    def between(i):
        factor["of"] = 1.0 + (i > 6)

    return Case(step, between)


@case(True)
def contents_are_swapped(device):
    net, other = model(device), model(device, nn.Tanh())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inner = plain_step(net, optimizer)

    def between(i):
        optimizer.zero_grad()
        if i in (5, 9):
            for one, two in zip(net.parameters(), other.parameters(), strict=True):
                torch.utils.swap_tensors(one, two)

    return Case(inner, between, lambda: [*net.parameters(), *other.parameters()])


@case(True)
def the_model_is_moved_away_and_back(device):
    net, optimizer = trained(device)

    def between(i):
        if i in (4, 9):
            net.cpu()
            net.to(device)

    return Case(plain_step(net, optimizer), between, lambda: list(net.parameters()))


@case(True)
def where_a_tensor_is_kept_a_buffer_comes(device):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = None

        def forward(self, x):
            self.last = x.sum()
            return x * 2

    net = Keeps()

    def between(i):
        if i == 7:
            del net.last
            net.register_buffer("last", torch.zeros((), dtype=torch.float64, device=device))

    return Case(lambda x: net(x), between, lambda: [net.last, "last" in vars(net), len(net._buffers)])


@case(True)
def tensors_of_a_list_by_operators(device):
    weights = [f64(4, device=device, v=float(k)) for k in (1, 2, 3)]

    def step(x):
        for weight in weights:
            x = -x * weight + (x > weight)
        return x

    def between(i):
        if i == 5:
            weights[0] = f64(4, device=device, v=7.0)
        if i == 8:
            weights[1].mul_(2)

    return Case(step, between)


@case(True)
def lists_that_grow(device):
    """Appended to by a replay too; cleared, replaced and written by the user between calls."""
    net, optimizer = trained(device)
    inner = plain_step(net, optimizer)
    held = {"losses": [], "norms": [0.0]}

    def step(x):
        loss = inner(x)
        held["losses"].append(loss)
        for parameter in (net[0].weight, net[2].weight):
            held["norms"].append(parameter.grad.norm())
        held["norms"][-1] = loss * 2
        return loss

    def between(i):
        if i == 5:
            held["losses"].clear()
        if i == 7:
            held["norms"] = []
        if i == 9:
            held["losses"][-1].zero_()
            held["norms"].insert(0, 3.0)

    return Case(step, between, lambda: held)


@case(True)
def containers_of_parameters(device):
    listed = nn.ParameterList([nn.Parameter(f64(4, device=device, v=2.0))])
    named = nn.ParameterDict({"a": nn.Parameter(f64(4, device=device, v=3.0))})

    def step(x):
        return (x * listed[0] + named["a"]).detach()

    def between(i):
        if i == 5:
            named["a"] = nn.Parameter(f64(4, device=device, v=5.0))
        if i == 9:
            listed[0] = nn.Parameter(f64(4, device=device, v=7.0))

    return Case(step, between)


@case(False)
def a_list_that_grows_is_read(device):
    losses = []

    def step(x):
        losses.append(x.sum())
        return x * len(losses) + losses[0]

    return Case(step, state=lambda: losses)


@case(False)
def a_list_that_grows_at_times(device):
    losses = []

    def step(x):
        if x.sum() > 0:
            losses.append(x.sum())
        return x * 2

    return Case(step, state=lambda: losses)


@case(True)
def what_wants_gradients_is_said_again(device):
    net, optimizer = trained(device)
    inner = plain_step(net, optimizer)
    trains = {"first": True}

    def step(x):
        net[0].requires_grad_(trains["first"])
        net[2].bias.requires_grad_(True)
        return inner(x)

    def between(i):
        trains["first"] = i < 5 or i > 9

    return Case(step, between, lambda: [*net.parameters(), [parameter.requires_grad for parameter in net.parameters()]])


REPLACED = {
    "backward": (torch.Tensor, lambda f: lambda self: f(self * 2)),
    "__rsub__": (torch.Tensor, lambda f: lambda self, other: f(self, other) * 2),
    "detach": (torch.Tensor, lambda f: lambda self: f(self) * 2),
    "_call_impl": (nn.Module, lambda f: lambda self, x: f(self, x) * 0.5),
}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_in_pytorchs_classes(name, before):
    kind, replacement = REPLACED[name]
    plain = getattr(kind, name)
    factor = [1.0]

    def make(device):
        net, optimizer = trained(device)
        inner = replacement(plain)
        calls = [0]

        def replaced(self, *args):
            return inner(self, *args) if factor[0] > 1 else plain(self, *args)

        def step(x):
            optimizer.zero_grad()
            loss = (1.0 - net(x)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def scaled(step):
            def call(x):
                calls[0] += 1
                factor[0] = 1.0 + (calls[0] > 7)
                held = name in vars(kind)
                if before or calls[0] > 7:
                    setattr(kind, name, replaced)
                try:
                    return step(x)
                finally:
                    if held:
                        setattr(kind, name, plain)
                    elif name in vars(kind):
                        delattr(kind, name)

            return call

        step.scaled = scaled
        return Case(step, state=lambda: list(net.parameters()))

    beside(make, not before)


def test_an_argument_that_holds_itself():
    endless = [1.0]
    endless.append(endless)

    def make(device):
        def step(x, held):
            return x * held[0]

        def between(i):
            endless[0] = float(i)

        step.scaled = lambda step: lambda x: step(x, endless)
        endless[0] = 1.0
        return Case(step, between)

    beside(make, False)


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name):
    beside(*CASES[name])
