"""Why a step is not replayed is told once: at the line that prevents it, with what to write instead. Each step here has one reason, and
`# <-` on its line.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import inspect
import itertools
import random
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from steps import batch, model
from surestep.observe import events

REASONS = {}
COUNT = 0


def reason(*phrases):
    """What makes a step, and what is told of it."""

    def add(make):
        REASONS[make.__name__] = make, phrases
        return make

    return add


def told(step, calls=4):
    """The events that tell why, and the warnings of these calls."""
    found = []
    stop = events.listen(lambda event: found.append(event) if event.name == "not_replayed" else None)
    with contextlib.closing(types.SimpleNamespace(close=stop)):
        for i in range(calls):
            step(batch("xla", i))
    return found


def place(make):
    lines, first = inspect.getsourcelines(make)
    return first + next(number for number, line in enumerate(lines) if line.rstrip().endswith("# <-"))


# State that changes


@reason("`global COUNT`", "Return the value")
def a_global():
    def step(x):
        global COUNT  # <-
        COUNT += 1
        return x * COUNT

    return step


@reason("an entry of calls is changed", "Keep it in a tensor")
def a_counter():
    calls = [0]

    def step(x):
        calls[0] += 1  # <-
        return x * 2

    return step


@reason("counter.calls is changed", "change it outside of the step")
def an_attribute():
    counter = types.SimpleNamespace(calls=0)

    def step(x):
        counter.calls += 1  # <-
        return x * 2

    return step


@reason("seen.add() changes a set", "after the step")
def a_set_that_grows():
    seen = set()

    def note(x):
        seen.add(x.shape)  # <-

    def step(x):
        note(x)
        return x * 2

    return step


@reason("`del held[0]`", "outside of the step")
def an_entry_is_deleted():
    held = [1.0] * 100

    def step(x):
        del held[0]  # <-
        return x * 2

    return step


@reason("handed in is changed", "Return a new one")
def an_argument_that_grows():
    def inner(x, held):
        held.append(x)  # <-
        return x * 2

    def step(x):
        return compiled(x, [])

    compiled = surestep.compile(inner)
    return compiled, lambda x: (x, [])


@reason("numbers (a count) moves on", "Take the next one outside")
def an_iterator():
    numbers = itertools.count()

    def step(x):
        return x * next(numbers)  # <-

    return step


@reason("numbers (a list_iterator) moves on", "Take the next one outside")
def an_iterator_is_looped_over():
    numbers = iter([1.0] * 100)

    def step(x):
        for number in numbers:  # <-
            return x * number

    return step


@reason("net.train() changes the module's mode", "before the step")
def a_mode():
    net = model("xla").eval()

    def step(x):
        net.train()  # <-
        result = net(x).detach()
        net.eval()
        return result

    return step


@reason("p.data is set", "in place")
def data_is_set():
    p = nn.Parameter(torch.ones(4, dtype=torch.float64, device="xla"))

    def step(x):
        p.data = p.data * 2  # <-
        return (x * p).detach()

    return step


# What is not known to be the same


@reason("random gives another number", "torch.rand")
def python_random():
    def step(x):
        return x * random.random()  # <-

    return step


@reason("time.time reads the clock", "outside of the step")
def a_clock():
    def step(x):
        return x * (time.time() > 0)  # <-

    return step


@reason("print writes at each call", "add_step_closure")
def printing():
    def step(x):
        print("step")  # <-
        return x * 2

    return step


@reason("computes on the host", "Use PyTorch")
def numpy_inside():
    def step(x):
        return x * np.sqrt(2.0)  # <-

    return step


@reason("scale (a float64) is a number of NumPy's", "float(")
def a_number_of_numpy():
    scale = np.float64(2.0)

    def step(x):
        return x * scale  # <-

    return step


@reason("scales (a ndarray) is NumPy's", "torch.from_numpy")
def an_array_of_numpy():
    scales = np.ones(4)

    def step(x):
        return x * scales[0]  # <-

    return step


@reason("weights is a set", "tuple(sorted(")
def a_sum_of_a_set():
    weights = {1.5, 2.5}

    def step(x):
        return x * sum(weights)  # <-

    return step


@reason("weights is a set", "tuple(sorted(")
def a_loop_over_a_set():
    weights = {1.5, 2.5}

    def step(x):
        for weight in weights:  # <-
            x = x * weight
        return x

    return step


@reason("data (a bytearray) can be changed", "bytes")
def a_length_of_bytes():
    data = bytearray(b"abc")

    def step(x):
        return x * len(data)  # <-

    return step


@reason("data (a array) can be changed", "tuple")
def an_array():
    data = array.array("d", [1.0])

    def step(x):
        return x * sum(data)  # <-

    return step


@reason("by a key that is not known", "numbers and texts that the code shows")
def a_key_that_is_not_known():
    weights = {"w2": [1.0], "w3": [2.0]}

    def step(x):
        return x * weights[f"w{x.relu().shape[0]}"][0]  # <-

    return step


@reason("lru_cached.<locals>.scale", "is not known", "outside")
def lru_cached():
    @functools.lru_cache
    def scale():
        return 2.0

    def step(x):
        return x * scale()  # <-

    return step


@reason("a new Amount is computed with", "Write a method")
def an_operator_of_the_users():
    class Amount:
        def __init__(self, of):
            self.of = of

        def __mul__(self, other):
            return self.of * other

    def step(x):
        return Amount(x) * 2  # <-

    return step


@reason("amount (a Amount) is computed with", "by attribute")
def an_operator_of_an_object():
    class Amount:
        def __rmul__(self, other):
            return other * 2

    amount = Amount()

    def step(x):
        return x * amount  # <-

    return step


@reason("whether flag is true", "attribute")
def the_truth_of_an_object():
    class Flag:
        def __bool__(self):
            return True

    flag = Flag()

    def step(x):
        if flag:  # <-
            return x * 2
        return x

    return step


@reason("an exception is caught", "around the step")
def an_exception_is_caught():
    def step(x):
        try:  # <-
            return x * 2
        except ValueError:
            return x

    return step


@reason("`with scaled()`", "around the step")
def a_manager_of_the_users():
    @contextlib.contextmanager
    def scaled():
        yield

    def step(x):
        with scaled():  # <-
            return x * 2

    return step


@reason("parts is a generator", "return a list")
def a_generator():
    def parts(x):
        yield x
        yield x * 2

    def step(x):
        return sum(parts(x))  # <-

    return step


@reason("match statement", "if and elif")
def matching():
    def step(x):
        match x.ndim:  # <-
            case 2:
                return x * 2
        return x

    return step


@reason("a class is defined inside", "outside of the step")
def a_class_inside():
    def step(x):
        class Local:  # <-
            scale = 2.0

        return x * Local.scale

    return step


@reason("a new Linear is made at each call", "outside of the step")
def a_module_inside():
    def step(x):
        return nn.Linear(4, 2, dtype=torch.float64, device="xla")(x).detach()  # <-

    return step


@reason("has hooks", "whose Python must run")
def a_hook():
    net = model("xla")
    net[0].register_forward_hook(lambda module, args, result: result * 2)

    def step(x):
        return net(x).detach()  # <-

    return step


@reason("computed by a descriptor", "property")
def a_descriptor():
    class Answers:
        def __get__(self, instance, owner):
            return 2.0

        def __set__(self, instance, value):
            pass

    class Holder:
        scale = Answers()

    holder = Holder()

    def step(x):
        return x * holder.scale  # <-

    return step


# Tensors


@reason("a value is read", "read it after")
def a_value_is_read():
    def step(x):
        return x * x.sum().item()  # <-

    return step


@reason("a tensor.numpy() reads values", "after the step")
def a_tensor_as_an_array():
    def step(x):
        return x * x.cpu().numpy().max()  # <-

    return step


@reason("a tensor.requires_grad_()", "before the step")
def wanting_a_gradient_inside():
    def step(x):
        y = (x * 2).requires_grad_()  # <-
        return torch.autograd.grad(y.square().sum(), y)[0]

    return step


@reason("computes on the host", "device='xla'")
def a_tensor_of_the_cpu():
    def step(x):
        return x + torch.ones(4).add(1).sum().to("xla")  # <-

    return step


@reason("takes a number from a CPU tensor", "device='xla'")
def a_number_of_a_cpu_tensor():
    scale = torch.tensor(2.0, dtype=torch.float64)

    def step(x):
        return x * scale  # <-

    return step


@reason("sent to the device", "before the step")
def a_tensor_is_sent():
    weight = torch.ones(4, dtype=torch.float64)

    def step(x):
        y = weight.to("xla")  # <-
        return x * y

    return step


@reason("sent to the device", "before the step")
def a_sent_tensor_is_kept():
    weight = torch.ones(4, dtype=torch.float64)
    holder = types.SimpleNamespace(weight=None)

    def step(x):
        holder.weight = weight.to("xla")  # <-
        return x * 2

    return step


@reason("'last' keeps a tensor through which gradients", "detach")
def a_graph_is_kept():
    net = model("xla")
    holder = {}

    def step(x):
        result = net(x)
        holder["last"] = result  # <-
        return result.detach()

    return step


@reason("the step returns a tensor through which gradients", "detach")
def a_graph_is_returned():
    net = model("xla")

    def step(x):
        result = net(x)
        return result  # <-

    return step


@reason("the step returns a view", ".clone()")
def a_view_is_returned():
    def step(x):
        y = x * 2
        return y, x[0]  # <-

    return step


@reason("the step returns held", "Return its tensors")
def a_list_from_outside_is_returned():
    held = [1.0]

    def step(x):
        y = x * held[0]
        return y, held  # <-

    return step


@reason("NUMBERS[0] (a float64) is a number of NumPy's", "float(")
def a_number_of_numpy_is_returned():
    def step(x):
        return [x * 2, *NUMBERS]  # <-

    return step


@reason("numbers is a set", "tuple(sorted(")
def a_set_is_asked_for_its_largest():
    numbers = frozenset({1.0, np.float64(2.0)})

    def step(x):
        return x * max(numbers)  # <-

    return step


@reason("read after a scheduler's step()", "Read it before")
def the_rate_after_its_scheduler():
    net = model("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        schedule.step()
        return x * optimizer.param_groups[0]["lr"]  # <-

    return step


@reason("optimizer's lr is a tensor", "float(")
def a_rate_that_is_a_tensor():
    net = model("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1))

    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()  # <-
        return x * 2

    return step


@reason("of torch.optim", "are replayed")
def an_optimizer_of_the_users():
    class Other(torch.optim.SGD):
        pass

    net = model("xla")
    optimizer = Other(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()  # <-
        net(x).sum().backward()
        optimizer.step()
        return x * 2

    return step


@reason("which object that is, is not known", "branch")
def a_value_by_a_branch():
    @dataclasses.dataclass
    class One:
        of: object

    def step(x):
        found = One(x) if x.relu().shape[0] == 3 else [x]
        return found.of * 2  # <-

    return step


@reason("sync is a boundary", "leave it out")
def a_boundary():
    def step(x):
        y = x * 2
        surestep.sync()  # <-
        return y

    return step


@reason("step(closure) runs the closure", "backward()")
def an_optimizers_closure():
    net = model("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = net(x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # <-
        return x * 2

    return step


@reason("hooks after its steps", "whose Python must run")
def an_optimizers_hook():
    net = model("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: None)

    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()  # <-
        return x * 2

    return step


NUMBERS = (np.float64(2.0),)


def test_warnings_of_a_recorded_call_are_of_the_users_line():
    """PyTorch's C++ warns where Python is: in the watch, which calls its functions."""

    @surestep.compile
    def step(x):
        return torch.nn.functional.mse_loss(x, x[:1]) + x.T.T.mT.sum() * 0 + x[..., 0].T.sum()

    with pytest.warns(UserWarning) as told:
        step(batch("xla"))
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize("name", REASONS)
def test_told_at_its_line(name):
    make, phrases = REASONS[name]
    step = make()
    step, arguments = step if isinstance(step, tuple) else (step, None)
    compiled = step if arguments else surestep.compile(step)
    (event,) = told((lambda x: compiled(*arguments(x))) if arguments else compiled)
    for phrase in phrases:
        assert phrase in event.data["reason"]
    assert event.line is not None and (event.line.file, event.line.line) == (__file__, place(make)), event
