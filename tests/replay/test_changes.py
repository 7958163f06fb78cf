"""More Python state that changes between a compiled step's calls: what classes decide, containers of the user's own, hooks, replaced and
equal objects, numbers of other types, results and arguments that share. Each call gives what plain PyTorch gives on the CPU.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import importlib
import os
import sys
import types
import typing
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from steps import Case, Cases, beside, f64, model, plain_step, trained
from surestep.loop.boundaries import add_step_closure

_SGD = importlib.import_module("torch.optim.sgd")
CASES = Cases()
case = CASES.case


@case(True)
def dict_replaced(device):
    class C:
        pass

    c = C()
    c.s = 1.0

    def step(x):
        return x * c.s

    def between(i):
        if i >= 4:
            c.__dict__ = {"s": float(i)}

    return Case(step, between)


@case(True)
def module_dict_replaced(device):
    class N(nn.Module):
        def __init__(s):
            super().__init__()
            s.k = 1.0

        def forward(s, x):
            return x * s.k

    n = N()

    def step(x):
        return n(x)

    def between(i):
        if i >= 4:
            d = dict(n.__dict__)
            d["k"] = float(i)
            n.__dict__ = d

    return Case(step, between)


@case(False)
def list_args_identity(device):
    def step(x, a, b):
        if a is b:
            return x * 2
        return x * 3

    n = [0]

    def scaled(step):
        def call(x):
            n[0] += 1
            one = [1.0]
            return step(x, one, one if n[0] < 6 else [1.0])

        return call

    step.scaled = scaled
    return Case(step)


@case(False)
def enum_with_own_bool(device):
    st = {"on": True}

    class M(enum.Enum):
        A = 1

        def __bool__(self):
            return st["on"]

    def step(x):
        if M.A:
            return x * 2
        return x * 3

    return Case(step, lambda i: st.update(on=i < 4))


@case(False)
def enum_with_own_add(device):
    st = {"k": 1}

    class M(enum.IntEnum):
        A = 1

        def __add__(self, o):
            return st["k"] + o

    def step(x):
        return x * (M.A + 1)

    return Case(step, lambda i: st.update(k=1 + (i > 5)))


@case(True)
def enum_property(device):
    st = {"k": 1.0}

    class M(enum.Enum):
        A = 1

        @property
        def k(self):
            return st["k"]

    def step(x):
        return x * M.A.k

    return Case(step, lambda i: st.update(k=float(i > 5)))


@case(False)
def protocol_isinstance(device):
    @typing.runtime_checkable
    class P(typing.Protocol):
        scale: float

    class C:
        pass

    c = C()

    def step(x):
        return x * 2 if isinstance(c, P) else x * 3

    return Case(step, lambda i: setattr(c, "scale", 1.0) if i == 4 else None)


@case(False)
def abc_registered(device):
    class A(abc.ABC):  # noqa: B024
        pass

    class C:
        pass

    c = C()

    def step(x):
        return x * 2 if isinstance(c, A) else x * 3

    return Case(step, lambda i: A.register(C) if i == 4 else None)


@case(False)
def metaclass_instancecheck(device):
    st = [True]

    class M(type):
        def __instancecheck__(cls, o):
            return st[0]

    class A(metaclass=M):
        pass

    def step(x):
        return x * 2 if isinstance(1, A) else x * 3

    return Case(step, lambda i: st.__setitem__(0, i < 4))


@case(True)
def argument_changes_class(device):
    class A:
        k = 1.0

    class B:
        k = 2.0

    a = A()

    def step(x, o):
        return x * (2 if isinstance(o, A) else 3)

    step.scaled = lambda s: lambda x: s(x, a)
    return Case(step, lambda i: setattr(a, "__class__", B) if i == 4 else None)


@case(False)
def lr_tensor(device):
    net, opt = trained(device, lambda p: torch.optim.SGD(p, lr=torch.tensor(0.05, dtype=torch.float64)))
    return Case(plain_step(net, opt), lambda i: opt.param_groups[0]["lr"].fill_(0.05 / (1 + i // 5)), lambda: list(net.parameters()))


@case(False)
def lr_tensor_xla(device):
    net, opt = trained(device, lambda p: torch.optim.SGD(p, lr=torch.tensor(0.05, dtype=torch.float64, device=device)))
    return Case(plain_step(net, opt), lambda i: opt.param_groups[0]["lr"].fill_(0.05 / (1 + i // 5)), lambda: list(net.parameters()))


@case(False)
def complex_params(device):
    p = nn.Parameter(torch.ones(3, dtype=torch.complex128, device=device))
    opt = torch.optim.SGD([p], lr=0.1)

    def step(x):
        opt.zero_grad()
        it = (p * x.sum()).abs().square().sum()
        it.backward()
        opt.step()
        return it.detach()

    return Case(step, lambda i: opt.param_groups[0].update(lr=0.1 / (1 + i // 5)), lambda: [torch.view_as_real(p.detach().cpu())])


@case(True)
def boolop_side(device):
    class A:
        a = 1.0
        b = 2.0

    def step(x):
        h = x * 1
        it = []
        (h.numel() > 10**6) and it.append(1)
        k = A.a if len(it) == 1 else A.b
        return h * k

    return Case(step, lambda i: setattr(A, "b", 2.0 if i < 5 else 7.0))


@case(True)
def augassign_branch(device):
    class A:
        a = 1.0
        b = 2.0

    def step(x):
        h = x * 1
        it = []
        if h.numel() > 10**6:
            it += [1]
        k = A.a if len(it) == 1 else A.b
        return h * k

    return Case(step, lambda i: setattr(A, "b", 2.0 if i < 5 else 7.0))


@case(True)
def comprehension_branch(device):
    class A:
        a = 1.0
        b = 2.0

    def step(x):
        h = x * 1
        it = []
        [it.append(i) for i in (1,) if h.numel() > 10**6]
        k = A.a if len(it) == 1 else A.b
        return h * k

    return Case(step, lambda i: setattr(A, "b", 2.0 if i < 5 else 7.0))


@case(True)
def comprehension_unknown(device):
    class A:
        a = 1.0
        b = 2.0

    def step(x):
        h = x * 1
        it = []
        [it.append(i) for i in h.split(1)]
        k = A.a if len(it) == 1 else A.b
        return h * k

    return Case(step, lambda i: setattr(A, "b", 2.0 if i < 5 else 7.0))


@case(False)
def dict_subclass(device):
    class D(dict):
        n = 0

        def __getitem__(self, k):
            D.n += 1
            return dict.__getitem__(self, k)

    d = D(s=2.0)

    def step(x):
        return x * d["s"]

    return Case(step, state=lambda: D.n)


@case(False)
def dict_subclass_missing(device):
    class D(dict):
        n = 0

        def __getitem__(self, k):
            return D.n

    d = D(s=2.0)

    def step(x):
        return x * d["s"]

    return Case(step, lambda i: setattr(D, "n", 1 + (i > 5)))


@case(False)
def list_subclass(device):
    class L(list):
        n = 1

        def __iter__(self):
            L.n += 1
            return list.__iter__(self)

        def __len__(self):
            L.n += 1
            return list.__len__(self)

    it = L([1.0, 2.0])

    def step(x):
        for v in it:
            x = x * v
        return x * len(it)

    return Case(step, state=lambda: L.n)


@case(False)
def list_subclass_getitem(device):
    class L(list):
        k = 1.0

        def __getitem__(self, i):
            return L.k

    it = L([1.0, 2.0])

    def step(x):
        return x * it[0]

    return Case(step, lambda i: setattr(L, "k", float(i > 5)))


@case(False)
def parents_call(device):
    n = [0]

    class Base(nn.Module):
        def __call__(self, *a):
            n[0] += 1
            return super().__call__(*a)

    class Net(Base):
        def forward(self, x):
            return x * 2

    net = Net()

    def step(x):
        return net(x)

    return Case(step, state=lambda: n[0])


@case(False)
def wrapped_library_forward(device):
    n = [0]
    lin = nn.Linear(4, 2).double().to(device)
    with torch.no_grad():
        lin.weight.fill_(0.5)
        lin.bias.fill_(0.1)
    orig = lin.forward

    @functools.wraps(orig)
    def forward(x):
        n[0] += 1
        return orig(x) * n[0]

    lin.forward = forward

    def step(x):
        return lin(x).detach()

    return Case(step, state=lambda: n[0])


@case(False)
def wrapped_library_forward_class(device):
    n = [0]

    class My(nn.Linear):
        pass

    orig = nn.Linear.forward

    @functools.wraps(orig)
    def forward(self, x):
        n[0] += 1
        return orig(self, x) * n[0]

    My.forward = forward
    lin = My(4, 2).double().to(device)
    with torch.no_grad():
        lin.weight.fill_(0.5)
        lin.bias.fill_(0.1)

    def step(x):
        return lin(x).detach()

    return Case(step, state=lambda: n[0])


@case(False)
def train_override(device):
    n = [0]

    class Inner(nn.Module):
        def train(self, mode=True):
            n[0] += 1
            return super().train(mode)

        def forward(self, x):
            return x * 2

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.i = Inner()

        def forward(s, x):
            return s.i(x)

    net = Net()

    def step(x):
        net.train()
        return net(x)

    return Case(step, state=lambda: n[0])


@case(True)
def grad_fn_is_none(device):
    class A:
        a = 2.0
        b = 3.0

    p = f64(4, device=device)

    def step(x):
        k = A.a if p.grad_fn is None else A.b
        return x * k

    return Case(step, lambda i: setattr(A, "a", 2.0 if i < 5 else 7.0))


@case(False)
def non_data_descriptor(device):
    class D:
        def __get__(self, o, k=None):
            return D.v

    D.v = None

    class A:
        d = D()
        a = 2.0
        b = 3.0

    a = A()

    def step(x):
        k = A.a if a.d is None else A.b
        return x * k

    return Case(step, lambda i: setattr(A, "a", 2.0 if i < 5 else 7.0))


@case(False)
def super_property(device):
    class Base:
        v = None

        @property
        def p(self):
            return Base.v

    class A(Base):
        ka = 2.0
        kb = 3.0

        def go(self, x):
            return x * (A.ka if super().p is None else A.kb)

    a = A()

    def step(x):
        return a.go(x)

    return Case(step, lambda i: setattr(A, "ka", float(i)))


@case(False)
def metaclass_property(device):
    st = {"k": 1.0}

    class M(type):
        @property
        def k(cls):
            return st["k"]

    class A(metaclass=M):
        pass

    type.__setattr__

    class B(metaclass=M):
        locals()["k"] = 7.0

    def step(x):
        return x * B.k

    return Case(step, lambda i: st.update(k=float(i > 5)))


@case(False)
def same_list_twice(device):
    def step(x):
        r = [x * 2]
        return r, r

    made = Case(step)

    def scaled(step):
        def call(x):
            a, b = step(x)
            return a[0], a is b

        return call

    step.scaled = scaled
    return made


@case(True)
def acc_grad_hook(device):
    n = [0]
    net, opt = trained(device)
    keep = []

    def between(i):
        if i == 5:
            p = net[0].weight
            acc = p.expand_as(p).grad_fn.next_functions[0][0]

            def hook(*a):
                n[0] += 1

            acc.register_hook(hook)
            keep.append(acc)

    return Case(plain_step(net, opt), between, lambda: [n[0], *net.parameters()])


@case(False)
def acc_grad_hook_before(device):
    n = [0]
    net, opt = trained(device)
    keep = []
    for p in net.parameters():
        acc = p.expand_as(p).grad_fn.next_functions[0][0]

        def hook(*a):
            n[0] += 1

        acc.register_hook(hook)
        keep.append(acc)
    return Case(plain_step(net, opt), state=lambda: [n[0], *net.parameters(), len(keep)])


@case(True)
def acc_grad_prehook(device):
    net, opt = trained(device)
    keep = []

    def between(i):
        if i == 5:
            for p in net.parameters():
                acc = torch.autograd.graph.get_gradient_edge(p).node
                acc.register_prehook(lambda g: (g[0] * 0.5,))
                keep.append(acc)

    return Case(plain_step(net, opt), between, lambda: list(net.parameters()))


@case(True)
def optimizer_state_edited(device):
    net, opt = trained(device, lambda p: torch.optim.AdamW(p, lr=0.05))

    def between(i):
        if i == 4:
            opt.state[net[0].weight]["exp_avg"] = torch.ones_like(net[0].weight)
        if i == 6:
            opt.state[net[0].weight]["exp_avg_sq"].mul_(2)
        if i == 8:
            opt.state.clear()

    return Case(plain_step(net, opt), between, lambda: list(net.parameters()))


@case(True)
def optimizer_attribute(device):
    net, opt = trained(device)

    def between(i):
        if i == 5:

            def step(self):
                pass

            opt.step = types.MethodType(step, opt)

    return Case(plain_step(net, opt), between, lambda: list(net.parameters()))


@case(True)
def optimizer_momentum_toggled(device):
    net, opt = trained(device)
    return Case(
        plain_step(net, opt),
        lambda i: opt.param_groups[0].update(momentum=[0.9, 0.0][i // 3 % 2], nesterov=False),
        lambda: list(net.parameters()),
    )


@case(True)
def betas_changed(device):
    net, opt = trained(device, lambda p: torch.optim.Adam(p, lr=0.05))
    return Case(
        plain_step(net, opt),
        lambda i: opt.param_groups[0].update(betas=(0.9 - i * 0.01, 0.99), amsgrad=False),
        lambda: list(net.parameters()),
    )


@case(True)
def betas_in_a_list(device):
    net = model(device)
    groups = [{"params": list(net.parameters()), "betas": [0.9, 0.99]}]
    net, opt = trained(device, lambda _: torch.optim.Adam(groups, lr=0.05), net)

    def between(i):
        opt.param_groups[0]["betas"][i % 2] -= 0.03

    return Case(plain_step(net, opt), between, lambda: list(net.parameters()))


@pytest.fixture(autouse=True)
def _as_pytorch_has_it():
    torch.zeros((), device="xla")  # the device's first use puts its own functions there
    linear, sgd = nn.functional.linear, _SGD.sgd
    yield
    nn.functional.linear, _SGD.sgd = linear, sgd
    for name in ("relu", "__matmul__"):
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)


@case(None)
def a_function_that_modules_call(device):
    net, original = model(device), nn.functional.linear

    def between(i):
        nn.functional.linear = (lambda x, weight, bias: original(x, weight) * i) if 5 <= i < 10 else original

    return Case(lambda x: net(x).detach(), between)


@case(None)
def a_function_that_an_optimizer_calls(device):
    net, opt = trained(device)
    original = _SGD.sgd

    def between(i):
        _SGD.sgd = (lambda *args, **kwargs: None) if 5 <= i < 10 else original

    return Case(plain_step(net, opt), between, lambda: list(net.parameters()))


@case(True)
def a_tensor_method(device):
    def between(i):
        if i == 5:
            torch.Tensor.relu = lambda x: x * 50
        if i == 10:
            del torch.Tensor.relu

    return Case(lambda x: x.relu() + x.sum(), between)


@case(None)
def a_tensor_operator(device):
    def between(i):
        if i == 5:
            torch.Tensor.__matmul__ = lambda a, b: torch.matmul(a, b) * 3
        if i == 10:
            del torch.Tensor.__matmul__

    return Case(lambda x: x @ x.T, between)


@case(None)
def a_module_loaded_again(device):
    def load(value):
        loaded = types.ModuleType("surestep_tests_loaded_again")
        loaded.factor = value
        sys.modules[loaded.__name__] = loaded

    load(1.0)

    def step(x):
        import surestep_tests_loaded_again

        return x * surestep_tests_loaded_again.factor

    return Case(step, lambda i: load(float(i)) if i % 4 == 3 else None)


@case(True)
def requires_grad_all(device):
    net, opt = trained(device)
    return Case(plain_step(net, opt), lambda i: net[2].requires_grad_(i % 5 != 3), lambda: list(net.parameters()))


@case(True)
def tied_untied(device):
    a = nn.Linear(4, 4).double().to(device)
    b = nn.Linear(4, 4).double().to(device)
    with torch.no_grad():
        for j, p in enumerate([*a.parameters(), *b.parameters()]):
            p.copy_(torch.linspace(-1, 1 + j, p.numel(), dtype=torch.float64).view(p.shape))
    net = nn.ModuleDict({"a": a, "b": b})
    own = b.weight
    opt = torch.optim.SGD([a.weight, a.bias, b.bias, own], lr=0.01)

    def step(x):
        opt.zero_grad()
        it = net["b"](torch.tanh(net["a"](x))).square().mean()
        it.backward()
        opt.step()
        return it.detach()

    def between(i):
        b.weight = a.weight if i % 4 < 2 else own

    return Case(step, between, lambda: list(net.parameters()))


@case(True)
def buffer_reregistered(device):
    class N(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("k", f64(4, device=device))

        def forward(s, x):
            s.k.add_(1)
            return x * s.k

    n = N()

    def step(x):
        return n(x)

    def between(i):
        if i == 5:
            n.register_buffer("k", f64(4, device=device, v=10.0))
        if i == 8:
            del n.k
            n.k = 2.0
            n.forward = lambda x: x * n.k

    return Case(step, between)


@case(True)
def accumulation_counts(device):
    net, opt = trained(device)
    st = {"i": 0}

    def step(x, last):
        it = net(x).square().mean() / 3
        it.backward()
        if last:
            opt.step()
            opt.zero_grad()
        return it.detach()

    def scaled(s):
        def call(x):
            st["i"] += 1
            return s(x, st["i"] % 3 == 0)

        return call

    step.scaled = scaled
    return Case(step, state=lambda: list(net.parameters()))


@case(False)
def grad_by_hand(device):
    net, opt = trained(device)

    def step(x):
        it = net(x).square().mean()
        it.backward()
        opt.step()
        for p in net.parameters():
            p.grad = p.grad * 0.5
        return it.detach()

    def between(i):
        if i == 4:
            for p in net.parameters():
                p.grad = torch.ones_like(p)
        if i == 7:
            net[0].weight.grad = None

    return Case(step, between, lambda: [*net.parameters(), *[p.grad for p in net.parameters()]])


@case(True)
def grads_set_between(device):
    net, opt = trained(device)

    def step(x):
        it = net(x).square().mean()
        it.backward()
        opt.step()
        return it.detach()

    def between(i):
        if i % 3 == 0:
            net[0].weight.grad = torch.ones_like(net[0].weight)
        if i == 8:
            opt.zero_grad(set_to_none=False)
        if i == 10:
            opt.zero_grad()

    return Case(step, between, lambda: [*net.parameters(), *[p.grad for p in net.parameters()]])


@case(True)
def alias_between_calls(device):
    other = f64(3, 4, device=device, v=2.0)

    def step(x, y):
        x.add_(1)
        return x * y

    n = [0]

    def scaled(s):
        def call(x):
            n[0] += 1
            return s(x, x if n[0] % 3 == 0 else other)

        return call

    step.scaled = scaled
    return Case(step, state=lambda: other)


@case(False)
def views_of_one_base(device):
    base = f64(6, 4, device=device)

    def step(x, a, b):
        a.add_(x)
        b.mul_(2.0)
        return a + b

    n = [0]

    def scaled(s):
        def call(x):
            n[0] += 1
            return s(x, base[:3], base[3:] if n[0] % 2 else base[2:5])

        return call

    step.scaled = scaled
    return Case(step, state=lambda: base)


@case(False)
def numbers_change_type(device):
    vals = [1, 1.0, True, 2, 2.0, False, 0, 0.0, -0.0, 1, 1.0, True, 2, 2.0]
    n = [0]

    def step(x, k):
        if isinstance(k, bool):
            return x + 5
        return torch.full((2,), k, device=x.device), x * k, k

    def scaled(s):
        def call(x):
            n[0] += 1
            return s(x, vals[n[0] % 14])

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def none_args(device):
    n = [0]

    def step(x, m=None):
        return x if m is None else x * m

    def scaled(s):
        def call(x):
            n[0] += 1
            return s(x + 0, None if n[0] % 3 else x)

        return call

    step.scaled = scaled
    return Case(step)


@case(False)
def numpy_args(device):
    a = np.ones((3, 4))

    def step(x, a):
        return x * torch.as_tensor(a).to(x.device)

    step.scaled = lambda s: lambda x: s(x, a)

    def between(i):
        a[:] = i

    return Case(step, between)


@case(False)
def zero_dim_args(device):
    a = torch.ones((), dtype=torch.float64)

    def step(x, a):
        return x * a

    step.scaled = lambda s: lambda x: s(x, a)
    return Case(step, lambda i: a.fill_(i))


@case(True)
def dtype_changes(device):
    n = [0]

    def step(x):
        return x * 2 + torch.ones(4, device=x.device)

    def scaled(s):
        def call(x):
            n[0] += 1
            return s(x.to([torch.float64, torch.float32, torch.float16, torch.bfloat16][n[0] % 4])).double()

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def non_contiguous(device):
    n = [0]

    def step(x):
        x.mul_(2)
        return x.stride()[0] + x.sum(0), x

    def scaled(s):
        def call(x):
            n[0] += 1
            y = [x, x.t().contiguous().t(), x[:, ::2], x.expand(3, 4) + 0][n[0] % 4]
            return s(y)[0], x

        return call

    step.scaled = scaled
    return Case(step)


@case(False)
def environ(device):
    os.environ["HUNT"] = "1"

    def step(x):
        return x * float(os.environ["HUNT"]) * float(os.getenv("HUNT"))

    return Case(step, lambda i: os.environ.update(HUNT=str(i // 5)))


@case(False)
def frozen_dataclass(device):
    @dataclasses.dataclass(frozen=True)
    class C:
        k: float = 1.0

    st = {"c": C()}

    def step(x):
        return x * st["c"].k

    return Case(step, lambda i: st.update(c=dataclasses.replace(st["c"], k=float(i // 4))))


@case(False)
def slots(device):
    class C:
        __slots__ = ("k",)

    c = C()
    c.k = 1.0

    def step(x):
        return x * c.k

    return Case(step, lambda i: setattr(c, "k", float(i // 4)))


@case(True)
def namedtuple_config(device):
    C = collections.namedtuple("C", "k it")
    st = {"c": C(1.0, 2)}

    def step(x):
        return x * st["c"].k

    return Case(step, lambda i: st.update(c=C(float(i // 4), 2)))


@case(False)
def deque_state(device):
    d = collections.deque([1.0, 2.0], maxlen=2)

    def step(x):
        return x * d[0] * sum(d)

    return Case(step, lambda i: d.append(float(i // 4)))


@case(False)
def defaultdict_state(device):
    d = collections.defaultdict(lambda: 1.0)

    def step(x):
        return x * d["k"] + len(d)

    return Case(step, lambda i: d.update(k=float(i // 4)))


@case(True)
def simple_namespace(device):
    c = types.SimpleNamespace(k=1.0, inner=types.SimpleNamespace(m=2))

    def step(x):
        return x * c.k * c.inner.m

    return Case(step, lambda i: setattr(c.inner, "m", float(i // 4)))


@case(False)
def lru_cached(device):
    st = {"k": 1.0}

    @functools.lru_cache
    def k(i):
        return st["k"]

    def step(x):
        return x * k(1)

    def between(i):
        st["k"] = float(i)
        if i % 4 == 0:
            k.cache_clear()

    return Case(step, between)


@case(True)
def cached_property(device):
    class C:
        base = 1.0

        @functools.cached_property
        def k(self):
            return self.base * 2

    c = C()

    def step(x):
        return x * c.k

    def between(i):
        c.base = float(i)
        if i % 4 == 0:
            c.__dict__.pop("k", None)

    return Case(step, between)


@case(False)
def singledispatch(device):
    @functools.singledispatch
    def f(v):
        return 1.0

    def step(x):
        return x * f(1)

    def between(i):
        if i == 5:
            f.register(int, lambda v: 3.0)

    return Case(step, between)


@case(True)
def partial_changed(device):
    def g(x, k):
        return x * k

    st = {"f": functools.partial(g, k=1.0)}

    def step(x):
        return st["f"](x)

    def between(i):
        if i == 4:
            st["f"].keywords["k"] = 5.0
        if i == 8:
            st["f"] = functools.partial(g, k=6.0)

    return Case(step, between)


@case(True)
def grad_mode(device):
    net = model(device)
    n = [0]

    def step(x):
        y = net(x)
        return y.detach(), y.requires_grad

    def scaled(s):
        def call(x):
            n[0] += 1
            with [torch.no_grad(), torch.enable_grad(), torch.inference_mode()][n[0] // 3 % 3]:
                r = s(x)
            return r[0].clone(), r[1]

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def other_models(device):
    nets = [model(device), model(device, nn.ReLU()), model(device)]
    with torch.no_grad():
        nets[2][0].weight.mul_(2)
    opts = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]
    c = [0]

    def step(net, opt, x):
        opt.zero_grad()
        it = net(x).square().mean()
        it.backward()
        opt.step()
        return it.detach()

    def scaled(s):
        def call(x):
            c[0] += 1
            j = c[0] % 3
            return s(nets[j], opts[j], x)

        return call

    step.scaled = scaled
    return Case(step, state=lambda: [p for n in nets for p in n.parameters()])


@case(False)
def output_aliases_input(device):
    def step(x):
        y = x.view(-1)
        x.add_(1)
        return y, x, x * 1

    def scaled(s):
        def call(x):
            y, z, w = s(x)
            x.mul_(3)
            return y, z, w, x

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def results_kept_and_written(device):
    kept = []
    p = f64(4, device=device)

    def step(x):
        p.add_(x.sum(0))
        return p * 1, p

    def scaled(s):
        def call(x):
            a, b = s(x)
            kept.append(a)
            if len(kept) % 3 == 0:
                b.mul_(0.5)
                a.zero_()
            return a.clone(), b is p

        return call

    step.scaled = scaled
    return Case(step, state=lambda: [*kept, p])


@case(True)
def setattr_patched(device):
    class C:
        pass

    c = C()
    c.loss = 0
    n = [0]

    def step(x):
        c.loss = x.sum()
        return x * 2

    def between(i):
        if i == 6:

            def sa(self, k, v):
                n[0] += 1
                object.__setattr__(self, k, v)

            C.__setattr__ = sa

    return Case(step, between, lambda: [n[0], c.loss])


@case(True)
def property_added(device):
    class C:
        pass

    c = C()
    c.loss = 0
    n = [0]

    def step(x):
        c.loss = x.sum()
        return x * 2

    def between(i):
        if i == 6:
            C.loss = property(lambda s: 7, lambda s, v: n.__setitem__(0, n[0] + 1))

    return Case(step, between, lambda: [n[0]])


@case(True)
def hasattr_property(device):
    class C:
        on = True

        @property
        def k(self):
            if not C.on:
                raise AttributeError
            return 1.0

    c = C()

    def step(x):
        return x * (2 if hasattr(c, "k") else 3) * getattr(c, "k", 5.0)

    return Case(step, lambda i: setattr(C, "on", i < 5))


@case(True)
def module_getattr_override(device):
    class N(nn.Module):
        def __getattr__(self, k):
            if k == "k":
                return N.v
            return super().__getattr__(k)

        def forward(self, x):
            return x * self.k

    N.v = 1.0
    n = N()

    def step(x):
        return n(x)

    return Case(step, lambda i: setattr(N, "v", float(i > 5)))


@case(True)
def dataclass_arg(device):
    @dataclasses.dataclass
    class C:
        k: float
        t: object

    c = C(1.0, f64(4, device=device))

    def step(x, c):
        return x * c.k * c.t

    step.scaled = lambda s: lambda x: s(x, c)

    def between(i):
        c.k = float(i // 3)
        if i == 6:
            c.t = c.t * 2

    return Case(step, between)


@case(False)
def weakref_state(device):
    class C:
        k = 1.0

    st = {"c": C()}
    r = weakref.ref(st["c"])

    def step(x):
        return x * (2 if r() is None else r().k)

    def between(i):
        if i == 5:
            st.clear()

    return Case(step, between)


@case(True)
def step_itself_replaced(device):
    def step(x):
        return x * 2

    def other(x):
        return x * 3

    def between(i):
        if i == 5:
            step.__code__ = other.__code__

    return Case(step, between)


@case(True)
def builtins_shadowed(device):
    def step(x):
        return x * abs(-2)

    def between(i):
        if i == 5:
            globals()["abs"] = lambda v: 7
        if i == 8:
            globals().pop("abs", None)

    if "abs" in globals():
        del globals()["abs"]
    return Case(step, between)


@case(True)
def parametrized(device):
    lin = nn.Linear(4, 4).double().to(device)
    with torch.no_grad():
        lin.weight.fill_(0.3)
        lin.bias.fill_(0.1)

    class P(nn.Module):
        k = 1.0

        def forward(self, w):
            return w * P.k

    def step(x):
        return lin(x).detach()

    def between(i):
        if i == 4:
            parametrize.register_parametrization(lin, "weight", P())
        P.k = float(i // 4)

    return Case(step, between)


@case(True)
def weight_norm(device):
    lin = nn.Linear(4, 4).double().to(device)
    with torch.no_grad():
        lin.weight.fill_(0.3)
        lin.bias.fill_(0.1)
    lin = nn.utils.parametrizations.weight_norm(lin)
    opt = torch.optim.SGD(lin.parameters(), lr=0.1)
    return Case(plain_step(lin, opt), state=lambda: list(lin.parameters()))


@case(True)
def loss_scaler_number(device):
    class S:
        scale = 2.0

    net, opt = trained(device)

    def step(x):
        opt.zero_grad()
        it = net(x).square().mean() * S.scale
        it.backward()
        for p in net.parameters():
            p.grad /= S.scale
        opt.step()
        return it.detach()

    return Case(step, lambda i: setattr(S, "scale", S.scale * (2 if i % 4 == 0 else 1)), lambda: list(net.parameters()))


@case(True)
def equal_object_each_time(device):
    class S:
        pass

    s = S()
    s.k = 1.0

    def step(x):
        return x * s.k

    def between(i):
        s.k = float(str(1.5 if i < 8 else 2.5))

    return Case(step, between)


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (3 + epoch)),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
}

for _name, _schedule in SCHEDULES.items():

    def _scheduled(device, schedule=_schedule):
        net, opt = trained(device, lambda p: torch.optim.AdamW(p, lr=0.05))
        scheduler = schedule(opt)

        def step(x):
            loss = net(x).square().mean()
            loss.backward()
            opt.step()
            scheduler.step()
            opt.zero_grad()
            return loss.detach()

        return Case(step, state=lambda: [*net.parameters(), scheduler.last_epoch, opt.param_groups[0]["lr"]])

    CASES[f"scheduler_{_name}"] = _scheduled, True


@case(False)
def the_rate_is_read_after_its_scheduler(device):
    net, opt = trained(device)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 5)

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        scheduler.step()
        return loss.detach() * opt.param_groups[0]["lr"]

    return Case(step)


@case(False)
def the_scheduler_steps_first(device):
    net, opt = trained(device)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 5)
    scheduler.optimizer._opt_called = True  # PyTorch warns of this order

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        scheduler.step()
        opt.step()
        return loss.detach()

    return Case(step, state=lambda: list(net.parameters()))


@case(True)
def step_closures(device):
    net, opt = trained(device)
    log = []

    def note(loss, rows, what):
        log.append((float(loss), rows, what))

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        if device == "xla":
            add_step_closure(note, args=(loss.detach(), x.shape[0], "loss"))
        else:
            note(loss.detach(), x.shape[0], "loss")
        return loss.detach()

    return Case(step, state=lambda: log)


@case(True)
def a_closure_of_before_changes_a_guard(device):
    class A:
        k = 1.0

    y = f64(4, device=device)

    def step(x):
        return x * A.k

    def between(i):
        if device == "xla":
            y.add_(1)
            add_step_closure(lambda: setattr(A, "k", float(i // 6)))
        else:
            A.k = float(i // 6)

    return Case(step, between)


@case(True)
def a_result_of_a_data_class(device):
    @dataclasses.dataclass
    class Out:
        loss: object
        parts: list = dataclasses.field(default_factory=list)
        note: str = "n"

    net = model(device)

    def step(x):
        with torch.no_grad():
            y = net(x)
            return Out(y.mean(), [y, y[0]])

    def scaled(step):
        def call(x):
            out = step(x)
            assert type(out) is Out
            return out.loss, out.parts, out.note

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def a_result_of_an_ordered_dict_with_attributes(device):
    class Out(collections.OrderedDict):
        def __init__(self, **entries):
            super().__init__()
            for key, value in entries.items():
                self[key] = value

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            super().__setattr__(key, value)

    net = model(device)

    def step(x):
        with torch.no_grad():
            out = Out(loss=net(x).mean(), logits=net(x))
            return out

    step.scaled = lambda step: lambda x: (lambda out: (out.loss, out["logits"], list(out), type(out) is Out))(step(x))
    return Case(step)


@case(False)
def a_data_class_that_counts(device):
    class Count:
        n = 0

    @dataclasses.dataclass
    class Out:
        loss: object

        def __post_init__(self):
            Count.n += 1

    def step(x):
        return Out(x.sum() * 2)

    step.scaled = lambda step: lambda x: step(x).loss
    return Case(step, state=lambda: Count.n)


@case(True)
def an_iterator_is_used_up(device):
    class A:
        a, b = 2.0, 3.0

    net = model(device)

    def step(x):
        parameters = net.parameters()
        used = [p for p in parameters]  # noqa: C416
        k = A.a if len(list(parameters)) == len(used) else A.b
        return x * k

    return Case(step, lambda i: setattr(A, "b", 3.0 if i < 5 else 7.0))


@case(True)
def a_config_that_answers_itself(device):
    class Config:
        names: typing.ClassVar = {"width": "n"}

        def __init__(self):
            self.n, self.rate = 3, 0.5

        def __getattribute__(self, key):
            if key != "names" and key in super().__getattribute__("names"):
                key = super().__getattribute__("names")[key]
            return super().__getattribute__(key)

        def __getattr__(self, key):
            if key == "missing":
                return self.rate
            raise AttributeError(key)

    config = Config()

    def step(x):
        return x * config.width * config.missing * getattr(config, "nothing", 2.0)

    def between(i):
        if i == 5:
            config.n = 4
        if i == 9:
            config.rate = 0.25

    return Case(step, between)


@case(True)
def a_scale_that_is_broadcast(device):
    net, opt = trained(device)
    scale = nn.Parameter(f64(2, device=device))
    opt.add_param_group({"params": [scale]})

    def step(x):
        loss = (net(x) * scale).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    def between(i):
        if i % 4 == 3:
            opt.zero_grad()

    return Case(step, between, lambda: [*net.parameters(), scale, scale.grad])


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name):
    beside(*CASES[name])
