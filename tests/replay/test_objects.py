"""Objects, classes and parts of training whose Python state changes between a compiled step's calls: slots, data classes, subclasses of
PyTorch's modules, schedulers, scalers, averages. Each call gives what plain PyTorch gives on the CPU.
"""

from __future__ import annotations

import collections
import dataclasses
import enum

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from steps import Case, Cases, beside, f64, trained
from surestep.loop.boundaries import add_step_closure

CASES = Cases()
case = CASES.case


@case(True)
def getattr_followed_state(device):
    class C:
        def __init__(self):
            self.d = {"k": 1.0}

        def __getattr__(self, n):
            try_ = self.__dict__["d"]
            if n in try_:
                return try_[n]
            raise AttributeError(n)

    c = C()

    def step(x):
        return x * c.k

    def between(i):
        if i == 4:
            c.d["k"] = 5.0
        if i == 8:
            c.k = 7.0

    return Case(step, between)


@case(True)
def slot_of_list(device):
    class C:
        __slots__ = ("k",)

    c = C()
    c.k = [1.0, 2.0]

    def step(x):
        return x * c.k[0] * sum(c.k)

    def between(i):
        if i == 5:
            c.k.append(4.0)
        if i == 8:
            c.k[0] = 9.0

    return Case(step, between)


@case(True)
def namedtuple_of_list(device):
    T = collections.namedtuple("T", "a b")
    t = T([1.0], {"k": 2.0})

    def step(x):
        return x * t.a[0] * t.b["k"] * len(t)

    def between(i):
        if i == 5:
            t.a[0] = 3.0
        if i == 8:
            t.b["k"] = 5.0

    return Case(step, between)


@case(True)
def set_of_frozen(device):
    s = frozenset({"a"})
    st = {"s": s}

    def step(x):
        return x * (2 if "b" in st["s"] else 3)

    return Case(step, lambda i: st.update(s=frozenset({"a", "b"})) if i == 5 else None)


@case(True)
def enum_attribute(device):
    class M(enum.Enum):
        A = 1

        def __init__(self, v):
            self.k = 2.0

    def step(x):
        return x * M.A.k

    return Case(step, lambda i: setattr(M.A, "k", 5.0) if i == 5 else None)


@case(False)
def identity_of_equal(device):
    class S:
        pass

    s = S()
    s.a = 1.5
    s.b = s.a

    def step(x):
        return x * (2 if s.a is s.b else 3)

    def between(i):
        if i == 5:
            s.a = float("1.5")

    return Case(step, between)


@case(True)
def minus_zero(device):
    class S:
        k = 0.0

    def step(x):
        return torch.full((2,), S.k, device=x.device).reciprocal()

    return Case(step, lambda i: setattr(S, "k", -0.0 if i > 5 else float("0")))


@case(True)
def one_true(device):
    class S:
        k = 1

    def step(x):
        return torch.full((2,), S.k, device=x.device) * 1, str(type(S.k))

    return Case(step, lambda i: setattr(S, "k", [1, True, 1.0][i // 4 % 3]))


@case(True)
def equal_tuple(device):
    class S:
        k = (1, 2)

    def step(x):
        return x.sum(S.k[0] - 1) * S.k[1]

    return Case(step, lambda i: setattr(S, "k", (1, 2) if i < 7 else (2, 2)))


@case(True)
def scheduler_replaced(device):
    net, opt = trained(device)
    st = {"s": torch.optim.lr_scheduler.StepLR(opt, 2)}

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        st["s"].step()
        return loss.detach()

    def between(i):
        if i == 5:
            st["s"] = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        if i == 9:
            opt.param_groups[0]["lr"] = 0.3

    return Case(step, between, lambda: [*net.parameters(), opt.param_groups[0]["lr"]])


@case(True)
def scheduler_patched(device):
    net, opt = trained(device)
    s = torch.optim.lr_scheduler.StepLR(opt, 2)
    n = [0]

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        s.step()
        return loss.detach()

    def between(i):
        if i == 5:
            old = s.step

            def mine():
                n[0] += 1
                old()

            s.step = mine

    return Case(step, between, lambda: [*net.parameters(), n[0]])


@case(True)
def two_schedulers(device):
    net, opt = trained(device)
    s = torch.optim.lr_scheduler.StepLR(opt, 2)
    t = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        s.step()
        t.step()
        opt.zero_grad()
        return loss.detach()

    return Case(step, state=lambda: [*net.parameters(), opt.param_groups[0]["lr"]])


@case(True)
def closure_replaced(device):
    log = []
    st = {"f": lambda v, n: log.append((float(v), n))}

    def step(x):
        y = x.sum()
        if device == "xla":
            add_step_closure(st["f"], (y, 1))
        else:
            st["f"](y, 1)
        return y * 2

    def between(i):
        if i == 6:
            st["f"] = lambda v, n: log.append(-float(v))

    return Case(step, between, lambda: log)


@case(True)
def averaged_reset(device):
    net, opt = trained(device)
    avg = AveragedModel(net, device=device)

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        avg.update_parameters(net)
        return loss.detach()

    def between(i):
        if i == 5:
            avg.n_averaged.zero_()
        if i == 8:
            avg.avg_fn = lambda a, b, n: a * 0.5 + b * 0.5
        if i == 10:
            avg.n_averaged = torch.tensor(0, device=device)

    return Case(step, between, lambda: [*avg.parameters(), avg.n_averaged])


@case(True)
def scaler_changes(device):
    net, opt = trained(device)
    net.float()
    sc = torch.amp.GradScaler(device, init_scale=16.0, growth_interval=2)

    def step(x):
        opt.zero_grad()
        loss = net(x.float()).square().mean()
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
        return loss.detach()

    def between(i):
        if i == 5:
            sc.set_growth_factor(4.0)
        if i == 7:
            sc.load_state_dict({"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1, "_growth_tracker": 0})
        if i == 9:
            sc._enabled = False

    step.scaled = lambda c: lambda x: round(float(c(x)), 4)
    return Case(step, between, lambda: [round(float(p.detach().double().sum()), 4) for p in net.parameters()] + [float(sc._scale)])


@case(False)
def scaler_partial(device):
    net, opt = trained(device)
    net.float()
    sc = torch.amp.GradScaler(device, init_scale=16.0)

    def step(x):
        opt.zero_grad()
        loss = net(x.float()).square().mean()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        return loss.detach()

    def scaled(c):
        def call(x):
            r = c(x)
            sc.step(opt)
            sc.update()
            return round(float(r), 4)

        return call

    step.scaled = scaled
    return Case(step, state=lambda: [round(float(p.detach().double().sum()), 4) for p in net.parameters()])


@case(True)
def output_class_patched(device):
    class Out(collections.OrderedDict):
        pass

    n = [0]

    def step(x):
        o = Out()
        o["a"] = x * 2
        return o

    step.scaled = lambda c: lambda x: c(x)["a"]

    def between(i):
        if i == 5:

            def si(self, k, v):
                n[0] += 1
                collections.OrderedDict.__setitem__(self, k, v)

            Out.__setitem__ = si

    return Case(step, between, lambda: n[0])


@case(True)
def dataclass_default_changes(device):
    @dataclasses.dataclass
    class Out:
        a: object
        k: float = 1.0

    def step(x):
        o = Out(x * 2)
        return o.a * o.k

    def between(i):
        if i == 5:
            Out.__init__.__defaults__ = (3.0,)
        if i == 8:
            Out.k = 9.0

    return Case(step, between)


@case(True)
def post_init_reads(device):
    class G:
        k = 1.0

    @dataclasses.dataclass
    class Out:
        a: object

        def __post_init__(self):
            self.a = self.a * G.k

    def step(x):
        return Out(x * 2).a

    return Case(step, lambda i: setattr(G, "k", 4.0) if i == 5 else None)


@case(True)
def sequential_subclass(device):
    class S(nn.Sequential):
        k = 1.0

        def __init__(self, *a):
            super().__init__(*a)

    net = S(nn.Linear(4, 4), nn.Tanh()).double().to(device)
    with torch.no_grad():
        [p.fill_(0.2) for p in net.parameters()]

    def step(x):
        return net(x).detach()

    def between(i):
        if i == 4:
            net.append(nn.Tanh())
        if i == 6:
            net[1] = nn.ReLU()
        if i == 8:
            S.forward = lambda self, x: x * 2
        if i == 10:
            del S.forward
            net.forward = lambda x: x * 5

    return Case(step, between)


@case(True)
def library_subclass(device):
    class L(nn.Linear):
        def __init__(self, *a):
            super().__init__(*a)

        def extra(self):
            return 1

    lin = L(4, 2).double().to(device)
    with torch.no_grad():
        [p.fill_(0.2) for p in lin.parameters()]
    w = f64(2, 4, device=device, v=3.0)

    def step(x):
        return lin(x).detach()

    def between(i):
        if i == 5:
            L.weight = property(lambda s: w)
        if i == 9:
            del L.weight
            L.forward = lambda self, x: x

    return Case(step, between)


@case(True)
def loss_class_hooks(device):
    h = []
    y = f64(3, 4, device=device)

    def step(x):
        return nn.MSELoss()(x, y)

    def between(i):
        if i == 5:
            h.append(nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 2))
        if i == 9:
            h.pop().remove()

    return Case(step, between)


@case(True)
def generator_twice(device):
    class A:
        a = 2.0
        b = 3.0

    d = {"u": 1.0, "v": 2.0}

    def step(x):
        z = zip(d, d.values(), strict=False)
        for _, v in z:
            x = x * v
        n = 0
        for _ in z:
            n += 1
        k = A.a if n == 0 else A.b
        return x * k

    def between(i):
        if i == 5:
            A.a = 7.0
        if i == 8:
            A.b = 8.0

    return Case(step, between)


@case(True)
def lambda_same_line(device):
    fs = [lambda x: x * 2, lambda x: x * 3]
    st = {"i": 0}

    def step(x):
        return fs[st["i"]](x)

    return Case(step, lambda i: st.update(i=i // 4 % 2))


@case(True)
def gone_gradient_held(device):
    net, opt = trained(device)
    kept = []

    def step(x, last):
        loss = net(x).square().mean()
        loss.backward()
        if last:
            opt.step()
            opt.zero_grad()
        return loss.detach()

    n = [0]

    def scaled(c):
        def call(x):
            n[0] += 1
            if n[0] > 6 and n[0] % 2 == 0:
                kept.append(net[0].weight.grad)
            return c(x, n[0] % 2 == 0)

        return call

    step.scaled = scaled
    return Case(step, state=lambda: [*net.parameters(), *kept])


@case(True)
def recurrent_config(device):
    class Cfg:
        def __getattribute__(self, n):
            if n == "k":
                return object.__getattribute__(self, "_k") * 2
            return object.__getattribute__(self, n)

    c = Cfg()
    c._k = 1.0

    def step(x):
        return x * c.k

    return Case(step, lambda i: setattr(c, "_k", float(i // 4)))


@case(True)
def undecided_missing(device):
    class A:
        a = 2.0

    a = A()

    def step(x):
        h = x * 1
        k = a.a if h.numel() > 0 else a.missing
        return h * k

    return Case(step, lambda i: setattr(A, "a", 5.0) if i == 5 else None)


@case(True)
def argument_dataclass_tensor_new(device):
    @dataclasses.dataclass
    class B:
        t: object
        k: float = 1.0

    n = [0]

    def step(b):
        return b.t * b.k

    def scaled(c):
        def call(x):
            n[0] += 1
            return c(B(x, float(n[0] // 5)))

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def argument_namedtuple(device):
    B = collections.namedtuple("B", "t k")
    n = [0]

    def step(b):
        return b.t * b.k

    def scaled(c):
        def call(x):
            n[0] += 1
            return c(B(x, float(n[0] // 5)))

        return call

    step.scaled = scaled
    return Case(step)


@case(True)
def enumeration_members_that_look_alike(device):
    class Mode(enum.Enum):
        A = 1
        B = 2

        def __repr__(self):
            return "a mode"

    class S:
        mode = Mode.A
        pair = (Mode.A, 1)

    def step(x):
        return x * S.mode.value * S.pair[0].value

    def between(i):
        if i == 5:
            S.mode = Mode.B
        if i == 9:
            S.pair = (Mode.B, 1)

    return Case(step, between)


@case(True)
def tuples_with_attributes(device):
    class Pair(tuple):
        factor = 1.0

    class S:
        pair = Pair((1.0, 2.0))

    def step(x):
        return x * S.pair[1] * S.pair.factor

    def between(i):
        if i == 5:
            S.pair = Pair((1.0, 2.0))
            S.pair.factor = 3.0

    return Case(step, between)


@case(True)
def one_of_many_layers(device):
    net = nn.Sequential(*(nn.Hardtanh(-9.0 - i, 9.0) for i in range(60)), nn.Linear(4, 2)).double().to(device)
    with torch.no_grad():
        net[60].weight.fill_(0.5)
        net[60].bias.fill_(0.1)

    def step(x):
        return net(x).detach()

    def between(i):
        if i == 4:
            net[30].max_val = 0.5
        if i == 7:
            net[40] = nn.ReLU()
        if i == 10:
            net[10].register_forward_hook(lambda module, args, out: out * 2)

    return Case(step, between)


@case(True)
def a_mode_of_a_child(device):
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())).double().to(device)

    def step(x):
        return net(x).detach()

    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.2)
    return Case(step, lambda i: net[1][0].train(i // 4 % 2 == 0), lambda: list(net.buffers()))


@case(True)
def an_average_over_the_state_dict(device):
    net, opt = trained(device)
    ema = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double().to(device)
    ema.load_state_dict(net.state_dict())

    def step(x):
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        with torch.no_grad():
            current = net.state_dict()
            for key, value in ema.state_dict().items():
                if value.dtype.is_floating_point:
                    value.mul_(0.9).add_(current[key], alpha=0.1)
        return loss.detach()

    def between(i):
        if i == 6:
            ema[0].weight = nn.Parameter(torch.zeros_like(ema[0].weight))

    return Case(step, between, lambda: list(ema.parameters()))


@pytest.mark.parametrize("name", CASES)
def test_as_plain_pytorch(name):
    beside(*CASES[name])
