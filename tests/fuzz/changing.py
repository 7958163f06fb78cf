"""Random compiled steps whose Python changes between the calls, against the same Python on the CPU, uncompiled.

A program is text: a module with a model, optimizers, and a step that reads numbers, flags, lists, dicts, attributes, globals and closures
in ways its seed chose; and what happens then: calls, and changes of what the step reads. It is run twice. After each call all that the
step returned and all state must be the same, and so must be the kinds of errors. A replay that is stale shows here.
"""

from __future__ import annotations

import itertools
import linecache
import random
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

HEAD = """
import collections, copy, dataclasses, enum, functools, operator, types
import torch
import torch.utils.checkpoint
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)  # so that what differs isn't rounding, grown large in a model that diverges

class Kind(enum.Enum):
    PLAIN = 0
    DOUBLE = 1

@dataclasses.dataclass
class Config:
    scale: float = 1.5
    flag: bool = True
    times: int = 2
    act: str = "relu"
    kind: Kind = Kind.PLAIN
    weights: list = dataclasses.field(default_factory=lambda: [1.0, 0.5])

Point = collections.namedtuple("Point", "a b")
CONFIG = Config()
TABLE = {"scale": 0.75, "flag": False, "shift": -0.25, "nested": {"gain": 2.0}, 3: 1.25}
LIST = [0.5, 1.5]
SET = {"norm", "tail"}
POINT = Point(1.0, 2.0)
SPACE = types.SimpleNamespace(bias=0.125, on=True, inner=types.SimpleNamespace(exponent=2))
NUMBER, FLAG, NAME = 0.5, True, "tanh"
FUNCTIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
LOG, COUNTS = [], {"calls": 0, "seen": 0.0}
CACHE = {}

def helper(h, factor=1.0, *, offset=0.0):
    return h * factor + offset

def other_helper(h, factor=1.0, *, offset=0.0):
    return h * factor - offset

class Block(nn.Module):
    shift = 0.25

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.gain, self.on, self.extra = 1.0, True, None
        self.register_buffer("seen", torch.zeros(()))

    @property
    def factor(self):
        return self.gain * 2

    def mixed(self, x):
        return x + self.shift

    def forward(self, x):
        x = self.mixed(self.linear(x)) * self.factor
        if self.on:
            x = self.norm(x)
        if self.extra is not None:
            x = x + self.extra(x)
        return x * 1.1 if self.training else x

class Other(Block):
    shift = -0.5

    def mixed(self, x):
        return x * self.shift

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.head = nn.Linear(4, 2)
        self.temperature = 1.0

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x) / self.temperature

model = Net().to(DEVICE)
frozen = nn.Linear(4, 4).to(DEVICE)
ema = copy.deepcopy(model)
buffer = torch.zeros(2, device=DEVICE)
noise = torch.linspace(-1, 1, 4).to(DEVICE)
DATA = torch.sin(torch.arange(96.0)).reshape(6, 4, 4).to(DEVICE)
TARGETS = torch.cos(torch.arange(48.0)).reshape(6, 4, 2).to(DEVICE)
"""

OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), lr=0.1)",
    "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)",
    "torch.optim.AdamW(model.parameters(), lr=0.01)",
    "torch.optim.Adam([{'params': model.blocks.parameters(), 'lr': 0.02}, {'params': model.head.parameters()}], lr=0.01)",
    "torch.optim.RMSprop(model.parameters(), lr=0.01)",
)
SCHEDULERS = (
    "torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)",
    "torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6)",
    "torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1 / (1 + n))",
)

# What a step does with its input, and between the forward pass and the end. `h` is (batch, 4) before the model and (batch, 2) after it.
BEFORE = (
    "h = h * CONFIG.scale",
    "h = h * TABLE['scale']",
    "h = h + TABLE['nested']['gain']",
    "h = h * TABLE.get('missing', 1.0)",
    "h = h + SPACE.bias",
    "h = h ** SPACE.inner.exponent",
    "h = h * NUMBER",
    "h = h * (2.0 if FLAG else 0.5)",
    "h = FUNCTIONS[NAME](h)",
    "h = getattr(torch, NAME)(h)",
    "h = h * POINT.a + POINT.b",
    "h = h + sum(LIST)",
    "for weight in LIST:\n    h = h + weight",
    "for number in range(CONFIG.times):\n    h = h * (number + 1)",
    "h = h * cell",
    "h = helper(h, factor=1.5)",
    "h = helper(h, offset=NUMBER)",
    "h = (lambda each: each + k)(h)",
    "h = h * k",
    "if k > 1:\n    h = h + 1",
    "if CONFIG.flag:\n    h = h.sin()\nelse:\n    h = h.cos()",
    "if CONFIG.act == 'relu':\n    h = F.relu(h)",
    "if CONFIG.kind is Kind.DOUBLE:\n    h = h * 2",
    "if 'norm' in SET:\n    h = F.layer_norm(h, (4,))",
    "if TABLE['flag']:\n    h = -h",
    "if SPACE.on and not TABLE['flag']:\n    h = h + 0.5",
    "if model.training:\n    h = h * 0.9",
    "h = frozen(h)",
    "h = h + noise",
    "with torch.no_grad():\n    h = h * frozen.weight.sum()",
    "h = torch.stack([h * weight for weight in CONFIG.weights]).sum(0)",
    "h = sum(h * value for value in TABLE['nested'].values())",
    "parts = {name: h * value for name, value in TABLE['nested'].items()}\nh = parts['gain']",
    "a, *rest = LIST\nh = h + a + len(rest)",
    "try:\n    h = h * TABLE[3]\nexcept KeyError:\n    h = h * 9",
    "h = h * Block.shift",
    "h = h + model.blocks[0].gain",
    "h = h + len(model.blocks)",
    "h = h if isinstance(model.blocks[0], Other) else h * 1.5",
    "h = h.to(torch.get_default_dtype())",
    "h = h + x.shape[0]",
    "h = operator.add(h, max(LIST))",
    "h = h + (NUMBER or 3.0)",
    "h = h * float(f'{NUMBER}')",
    "while h.shape[0] > 3:\n    h = h[:-1]\n    y = y[:-1]",
)
FORWARD = (
    "h = model(h)",
    "h = model(h)",
    "h = model(h)",
    "h = model.head(model.blocks[0](h))",
    "h = model.head(h)",
    "h = torch.utils.checkpoint.checkpoint(model, h, use_reentrant=False)",
)
LOSSES = (
    "loss = F.mse_loss(h, y)",
    "loss = (h - y).abs().mean()",
    "loss = F.mse_loss(h, y) + CONFIG.scale * sum(p.pow(2).sum() for p in model.parameters())",
    "loss = criterion(h, y)",
    "loss = (h * y).sum() * TABLE['shift']",
)
BACKWARD = ("loss.backward()", "loss.backward()", "(loss / CONFIG.times).backward()")
AFTER = (
    "torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.scale)",
    "torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)",
    "buffer.add_(h.detach().mean(0))",
    "buffer.copy_(h.detach()[0])",
    "buffer.mul_(0.5).add_(loss.detach())",
    "model.blocks[0].seen += 1",
    "with torch.no_grad():\n    for old, new in zip(ema.parameters(), model.parameters()):\n        old.lerp_(new, 0.25)",
    "LOG.append(loss.detach())",
    "CACHE['last'] = h.detach()",
    "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)",
    "model.last = h.detach()",
    "with torch.no_grad():\n    model.head.bias.clamp_(-0.5, 0.5)",
)
# Such a step is recorded at each call.
RESTLESS = (
    "for p, g in zip(model.parameters(), torch.autograd.grad(model(x).sum(), model.parameters(), allow_unused=True)):\n    p.grad = g",
    "buffer.add_(torch.func.functional_call(model, dict(model.named_parameters()), (x,)).detach()[0])",
    "buffer.add_(functools.partial(helper, factor=0.5)(h).detach()[0])",
    "COUNTS['calls'] += 1",
    "LOG.append(loss.item())",
    "if len(LOG) > 2:\n    LOG.clear()",
    "if 'last' in CACHE:\n    buffer.add_(CACHE['last'][0])\nCACHE['last'] = h.detach()",
    "COUNTS['seen'] = COUNTS['seen'] + k",
    "model.temperature = model.temperature * 1.5",
    "if COUNTS['calls'] % 2:\n    loss = loss * 2\nCOUNTS['calls'] += 1",
    "for group in opt.param_groups:\n    group['lr'] = group['lr'] * 0.9",
    "if buffer.sum() > 1:\n    buffer.zero_()",
)
STEPS = ("opt.step()", "opt.step()", "opt.step()", "if k < 2:\n    opt.step()", "if step_now:\n    opt.step()\n    opt.zero_grad()")
RESULTS = (
    "return loss",
    "return loss.detach()",
    "return loss.detach(), h.detach()",
    "return {'loss': loss.detach(), 'lr': opt.param_groups[0]['lr'], 'h': [h.detach(), h.detach()[0]]}",
    "return Point(loss.detach(), k)",
    "return h.detach().argmax(1)",
    "return None",
    "return buffer",
    "return loss.detach(), buffer, x",
)

CHANGES = (
    "CONFIG.scale += 0.25",
    "CONFIG.flag = not CONFIG.flag",
    "CONFIG.times = 3 - CONFIG.times if CONFIG.times < 3 else 1",
    "CONFIG.act = 'tanh' if CONFIG.act == 'relu' else 'relu'",
    "CONFIG.kind = Kind.DOUBLE if CONFIG.kind is Kind.PLAIN else Kind.PLAIN",
    "CONFIG.weights.append(0.125)",
    "CONFIG.weights[0] = -1.0",
    "CONFIG = dataclasses.replace(CONFIG, scale=0.5)",
    "TABLE['scale'] = 1.25",
    "TABLE['flag'] = not TABLE['flag']",
    "TABLE['missing'] = 3.0",
    "TABLE['nested'] = {'gain': 0.5}",
    "TABLE['nested']['gain'] += 1",
    "TABLE['nested']['more'] = 0.5",
    "TABLE.pop(3, None)",
    "TABLE = dict(TABLE, scale=-1.0)",
    "LIST.append(0.25)",
    "LIST[0] = 2.0",
    "LIST = [1.0]",
    "LIST.reverse()",
    "SET ^= {'norm'}",
    "POINT = POINT._replace(a=POINT.a + 1)",
    "SPACE.bias = -SPACE.bias",
    "SPACE.on = not SPACE.on",
    "SPACE.inner.exponent = 3 - SPACE.inner.exponent",
    "SPACE.inner = types.SimpleNamespace(exponent=1)",
    "NUMBER = NUMBER + 1",
    "NUMBER = 0.0",
    "NUMBER = 1",
    "FLAG = not FLAG",
    "NAME = 'sigmoid' if NAME == 'tanh' else 'tanh'",
    "FUNCTIONS['tanh'], FUNCTIONS['relu'] = FUNCTIONS['relu'], FUNCTIONS['tanh']",
    "helper, other_helper = other_helper, helper",
    "helper.__defaults__ = (2.0,)",
    "helper.__kwdefaults__['offset'] = 0.5",
    "helper.__code__ = other_helper.__code__",
    "set_cell(get_cell() + 0.5)",
    "step_now = not step_now",
    "Block.shift = Block.shift + 0.5",
    "model.blocks[0].shift = 0.75",
    "model.blocks[1].gain = 0.5",
    "model.blocks[0].on = not model.blocks[0].on",
    "model.blocks[0].extra = frozen if model.blocks[0].extra is None else None",
    "model.blocks[0].__class__ = Other if type(model.blocks[0]) is Block else Block",
    "model.blocks[0].mixed = lambda x: x * 3",
    "Block.mixed, Other.mixed = Other.mixed, Block.mixed",
    "Block.factor = property(lambda self: self.gain * 3)",
    "model.temperature = 2.0",
    "model.train(not model.training)",
    "model.blocks[1].eval()",
    "model.head.weight.requires_grad_(not model.head.weight.requires_grad)",
    "model.blocks[0].requires_grad_(False)",
    "model.blocks[0].requires_grad_(True)",
    "model.head.bias.data.mul_(2)",
    "model.head.bias.data = torch.ones_like(model.head.bias)",
    "with torch.no_grad():\n    model.head.weight.mul_(0.5)",
    "model.load_state_dict(ema.state_dict())",
    "model.head = copy.deepcopy(model.head)",
    "model.blocks[1].linear.weight = model.blocks[0].linear.weight",
    "model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]",
    "del model.blocks[len(model.blocks) - 1 :]",
    "model.blocks.append(Block(4).to(DEVICE))",
    "model.zero_grad()",
    "model.zero_grad(set_to_none=False)",
    "model.head.weight.grad = torch.ones_like(model.head.weight)",
    "model.blocks[0].register_buffer('seen', model.blocks[0].seen + 2)",
    "hooks.append(model.head.register_forward_hook(lambda module, args, out: out * 1.5))",
    "hooks.append(model.head.weight.register_hook(lambda g: g * 2))",
    "hooks.append(model.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)))",
    "hooks.append(opt.register_step_pre_hook(lambda *_: COUNTS.update(calls=COUNTS['calls'] + 10)))",
    "hooks and hooks.pop().remove()",
    "opt.param_groups[0]['lr'] *= 0.5",
    "opt.param_groups[0]['weight_decay'] = 0.1",
    "opt.param_groups[0]['maximize'] = not opt.param_groups[0].get('maximize', False)",
    "opt.state.clear()",
    "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    "opt.zero_grad()",
    "opt = torch.optim.SGD(model.parameters(), lr=0.2)",
    "opt.step()",
    "sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)",
    "sched.step()",
    "buffer.fill_(0.5)",
    "buffer = buffer.clone()",
    "buffer = torch.ones(2, device=DEVICE)",
    "noise = noise + 1",
    "noise[0] = 5.0",
    "frozen.weight.data.mul_(0.5)",
    "frozen = copy.deepcopy(frozen)",
    "criterion = F.l1_loss if criterion is not F.l1_loss else nn.MSELoss()",
    "criterion = nn.SmoothL1Loss(beta=0.5)",
    "CACHE.clear()",
    "LOG.clear()",
    "COUNTS['calls'] = 1",
    "model = copy.deepcopy(model)",
    "ema = copy.deepcopy(model)",
    "torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)",
    "DATA.mul_(0.5)",
    "DATA = DATA.flip(0)",
)

CALLS = (
    "step(DATA[{i}], TARGETS[{i}])",
    "step(DATA[{i}], TARGETS[{i}])",
    "step(DATA[{i}], TARGETS[{i}])",
    "step(DATA[0], TARGETS[0])",
    "step(DATA[{i}].clone(), TARGETS[{i}].clone())",
    "step(DATA[{i}].clone(), TARGETS[{i}].clone())",
    "step(DATA[{i}][:3], TARGETS[{i}][:3])",
    "step(DATA[{i}].t(), TARGETS[{i}])",
    "step(DATA[{i}], y=TARGETS[{i}])",
    "step(DATA[{i}], TARGETS[{i}], {k})",
    "step(DATA[{i}], TARGETS[{i}], k={k})",
    "step(DATA[{i}], TARGETS[{i}], k=torch.tensor({k}, device=DEVICE))",
    "step(DATA[{i}], DATA[{i}][:, :2])",
    "with torch.no_grad():\n    step(DATA[{i}], TARGETS[{i}])",
)


class Program(NamedTuple):
    """The module's text; and texts of what happens then, the calls with a variable for what they return."""

    module: str
    events: list[str]


def generate(r: random.Random) -> Program:
    """A program by random choices."""
    body = ["h = x"]
    zero = r.choice(["opt.zero_grad()", "opt.zero_grad()", "opt.zero_grad(set_to_none=False)", "model.zero_grad()", ""])
    late = r.random() < 0.3
    body += [zero] if not late else []
    body += r.sample(BEFORE, r.randrange(1, 5))
    body += [r.choice(FORWARD), r.choice(LOSSES), r.choice(BACKWARD)]
    after = r.sample(AFTER, r.choice((0, 0, 1, 1, 2, 3)))
    after += [r.choice(RESTLESS)] if r.random() < 0.15 else []
    body += [*after, r.choice(STEPS)] if r.random() < 0.7 else [r.choice(STEPS), *after]
    if r.random() < 0.25:
        body.append("sched.step()")
    body += [zero] if late else []
    body.append(r.choice(RESULTS))
    lines = "\n".join(line for statement in body if statement for line in statement.split("\n"))
    module = HEAD + "\n".join(
        [
            f"opt = {r.choice(OPTIMIZERS)}",
            f"sched = {r.choice(SCHEDULERS)}",
            f"criterion = {r.choice(('F.mse_loss', 'nn.MSELoss()'))}",
            "hooks, step_now = [], True",
            "def make():",
            "    cell = 0.5",
            "    def set_cell(value):",
            "        nonlocal cell",
            "        cell = value",
            "    @compiled",
            "    def step(x, y, k=1.0):",
            *(f"        {line}" for line in lines.split("\n")),
            "    return step, set_cell, lambda: cell",
            "step, set_cell, get_cell = make()",
        ]
    )
    calls = r.sample(CALLS, r.choice((1, 1, 2, 3)))
    events = []
    for _ in range(r.randrange(10, 24)):
        for _ in range(r.choice((0, 0, 0, 0, 0, 0, 1, 1, 2))):
            events.append(r.choice(CHANGES))
        call = r.choice(calls).format(i=r.randrange(6), k=r.choice(("1.0", "2.0", "3", "0.5")))
        events.append(call.replace("step(", "RESULT = step("))
    return Program(module, events)


class Side:
    """A program on one device."""

    _numbers = itertools.count()

    def __init__(self, program: Program, device: str, compiled: Callable[[Any], Any]):
        module = types.ModuleType(f"random_step_{next(self._numbers)}")
        sys.modules[module.__name__] = module  # where data classes look for their module
        file = f"<{module.__name__}>"
        linecache.cache[file] = (len(program.module), None, program.module.splitlines(keepends=True), file)
        self.own: dict[str, Any] = vars(module)
        self.own.update(DEVICE=device, compiled=compiled)
        exec(compile(program.module, file, "exec", dont_inherit=True), self.own)

    def happens(self, event: str) -> str | None:
        """Runs an event; gives the kind of its error."""
        try:
            exec(compile(event, "<an event>", "exec", dont_inherit=True), self.own)
        except Exception as error:
            return type(error).__name__
        return None

    def state(self) -> dict[str, Any]:
        """All that a step may have changed, by name."""
        own = self.own
        found = {f"model.{name}": value for name, value in own["model"].state_dict().items()}
        found |= {f"ema.{name}": value for name, value in own["ema"].state_dict().items()}
        found |= {f"{name}.grad": p.grad for name, p in own["model"].named_parameters()}
        found |= {f"opt.{place}": value for place, value in enumerate(tree_flatten(own["opt"].state_dict())[0])}
        for name in ("buffer", "LOG", "COUNTS", "CACHE", "noise", "RESULT"):
            found |= {f"{name}.{place}": value for place, value in enumerate(tree_flatten(own.get(name))[0])}
        found["last"], found["temperature"] = getattr(own["model"], "last", None), own["model"].temperature
        return found


def differences(truth: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What isn't the same."""
    if truth.keys() != ours.keys():
        return [f"there are others: {sorted(truth.keys() ^ ours.keys())}"]
    return [f"{name}: {ours[name]} where the CPU has {value}" for name, value in truth.items() if not _same(value, ours[name])]


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        two = two.detach().cpu()
        return one.dtype == two.dtype and one.shape == two.shape and torch.allclose(one.detach(), two, rtol=2e-3, atol=2e-4, equal_nan=True)
    if isinstance(one, float) and isinstance(two, float):
        return _same(torch.tensor(one), torch.tensor(two))
    return type(one) is type(two) and one == two


def run(program: Program, compiled: Callable[[Any], Any], device: str = "xla") -> list[str]:
    """Runs a program on both sides; gives the first differences."""
    before = torch.get_default_dtype()
    try:
        truth, ours = Side(program, "cpu", lambda function: function), Side(program, device, compiled)
        for place, event in enumerate(program.events):
            dtype, seed = torch.get_default_dtype(), torch.get_rng_state()
            expected = truth.happens(event)
            torch.set_default_dtype(dtype)
            torch.set_rng_state(seed)
            found = ours.happens(event)
            if expected != found:
                return [f"event {place}, {event!r}: {found} where the CPU has {expected}"]
            if "step(" in event and (what := differences(truth.state(), ours.state())):
                return [f"after event {place}, {event!r}", *what]
    finally:
        torch.set_default_dtype(before)
    return []
