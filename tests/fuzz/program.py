"""Random programs: a list of choices that means the same on every device.

A program works on a pool of tensors. Each instruction picks tensors and arguments by the generator's numbers and does one thing PyTorch
users do: create, compute, take a view, write in place, write through a view, drop a tensor, run backward, step an optimizer. Run on the
CPU it is the truth; run on xla, with boundaries put in anywhere, it must give the same tensors: values, sizes, strides, dtypes, gradients,
aliases, and the same kinds of errors.

Operations with jumps (comparisons, floor, sorting) work on integers only, where both sides are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lowered import lowered

SHAPES = [(), (1,), (3,), (4,), (2, 3), (3, 4), (4, 4), (1, 4), (2, 3, 4), (0, 3), (2, 1, 3), (5,), (6, 2)]
ERRORS = (RuntimeError, IndexError, ValueError, TypeError)


@dataclass
class Machine:
    """A pool of tensors on one device, and how a boundary is made there."""

    device: str
    boundary: Callable[[int], None]
    pool: list[torch.Tensor] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)

    def add(self, value: Any) -> None:
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                self.pool.append(tensor)


Instruction = tuple[str, Callable[["Machine"], None]]


def pick(machine: Machine, number: int) -> torch.Tensor:
    return machine.pool[number % len(machine.pool)]


def create(r: random.Random) -> Callable[[Machine], None]:
    shape, seed, kind = r.choice(SHAPES), r.randrange(1 << 30), r.randrange(8)

    def run(m: Machine) -> None:
        generator = torch.Generator().manual_seed(seed)
        if kind < 5:
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
        elif kind < 7:
            value = torch.randint(-5, 6, shape, generator=generator)
        else:
            value = torch.randn(shape, generator=generator, dtype=torch.float64).to(torch.complex128)
        if kind == 0 and len(shape) > 1:
            value = value.to(m.device).clone().transpose(0, 1)  # PyTorch's own .to("xla") makes contiguous tensors
        value = value.to(m.device)
        if kind in (1, 2):
            value.requires_grad_()
            m.leaves.append(value)
        m.add(value)

    return run


FACTORIES: list[Callable[[Any, str], torch.Tensor]] = [
    lambda n, d: torch.zeros(n + 1, 3, device=d, dtype=torch.float64),
    lambda n, d: torch.ones(2, n + 1, device=d, dtype=torch.float64),
    lambda n, d: torch.full((2, 2), float(n), device=d, dtype=torch.float64),
    lambda n, d: torch.arange(n + 1, device=d),
    lambda n, d: torch.eye(n + 1, device=d, dtype=torch.float64),
    lambda n, d: torch.empty_strided((2, 3), (1, 2), device=d, dtype=torch.float64).fill_(n),
    lambda n, d: torch.empty_strided((2, 2), (5, 2), device=d, dtype=torch.float64).fill_(n),
    lambda n, d: torch.tensor([[1.5, n], [2.0, 3.0]], device=d, dtype=torch.float64),
    lambda n, d: torch.linspace(0, n, 4, device=d, dtype=torch.float64),
]

UNARY: list[Callable[[torch.Tensor], Any]] = [
    torch.sin,
    torch.tanh,
    torch.neg,
    torch.abs,
    torch.square,
    torch.sigmoid,
    torch.nn.functional.gelu,
    torch.relu,
    torch.clone,
    torch.exp,
    lambda t: t.sum(),
    lambda t: t.sum(0),
    lambda t: t.mean(-1, keepdim=True),
    lambda t: t.cumsum(0),
    lambda t: t.prod(),
    lambda t: torch.softmax(t, -1),
    lambda t: torch.logsumexp(t, 0),
    lambda t: t.var(0, correction=0),
    lambda t: t.contiguous(),
    lambda t: t.clamp(-1, 1),
    lambda t: torch.flip(t, (0,)),
    lambda t: torch.roll(t, 1, 0),
    lambda t: t.tril(),
    lambda t: t * 2,
    lambda t: t + 1.5,
    lambda t: 3 - t,
    lambda t: t / 4,
    lambda t: t.pow(2),
    lambda t: torch.nn.functional.layer_norm(t, t.shape[-1:]),
    lambda t: t.norm(),
    lambda t: t.new_zeros(2, 2),
    lambda t: torch.zeros_like(t),
    lambda t: torch.ones_like(t),
    lambda t: t.double(),
    lambda t: t.double() if t.is_floating_point() else t.to(torch.float32).double(),  # rounding to float32 is a jump
    lambda t: torch.nn.functional.pad(t, (1, 1)),
    lambda t: t.repeat_interleave(2, 0),
    lambda t: t.repeat(2, 1),
    lambda t: t.tile(2),
    lambda t: t.amax(0),
]
INTEGER: list[Callable[[torch.Tensor], Any]] = [
    lambda t: t > 0,
    lambda t: t.sort(0)[0],
    lambda t: t.argmax(),
    lambda t: t // 2,
    lambda t: t % 3,
    lambda t: t.eq(1),
    lambda t: t & 3,
    lambda t: t.unique(),
    lambda t: t.nonzero(),
    lambda t: t[t > 0],
    lambda t: t.bitwise_not(),
    lambda t: t << 1,
    lambda t: torch.where(t > 0, t, -t),
    lambda t: t.sign(),
    lambda t: t.cummax(0)[0],
    lambda t: t.any(),
    lambda t: t.all(0),
    lambda t: t.topk(1, 0)[0],
    lambda t: t.masked_fill(t < 0, 7),
    lambda t: t.float().double(),
    lambda t: t.remainder(4),
]
BINARY: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.matmul,
    torch.maximum,
    lambda a, b: torch.addcmul(a, b, b, value=0.5),
    lambda a, b: a + b * 2,
    lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.stack([a, b], -1),
    lambda a, b: torch.add(a, b, alpha=2),
    lambda a, b: a / (b.abs() + 1),
    torch.outer,
    torch.dot,
    lambda a, b: torch.where(torch.ones_like(a, dtype=torch.bool), a, b),
    torch.logaddexp,
    torch.nn.functional.mse_loss,
    lambda a, b: torch.atan2(a, b.square() + 0.5),  # it jumps where the second is about zero
]
VIEWS: list[Callable[[torch.Tensor, int], Any]] = [
    lambda t, n: t.transpose(0, -1),
    lambda t, n: t.T if t.ndim == 2 else t.mT,
    lambda t, n: t[n % 3],
    lambda t, n: t[..., n % 3],
    lambda t, n: t[n % 2 :],
    lambda t, n: t[::2],
    lambda t, n: t[..., 1::2],
    lambda t, n: t.view(-1),
    lambda t, n: t.reshape(-1),
    lambda t, n: t.unsqueeze(n % 2),
    lambda t, n: t.squeeze(),
    lambda t, n: t.expand(2, *t.shape),
    lambda t, n: t.diagonal(),
    lambda t, n: t.unfold(0, 2, 1),
    lambda t, n: t.as_strided((2, 2), (1, 1 + n % 2), n % 2) if t.ndim else t,  # the CPU's scalars may keep a larger memory
    lambda t, n: t.permute(*reversed(range(t.ndim))),
    lambda t, n: t.narrow(0, n % 2, 1),
    lambda t, n: t.chunk(2, -1),
    lambda t, n: t.detach(),
    lambda t, n: t.flatten(),
    lambda t, n: t.view(t.shape[::-1]),
    lambda t, n: t.movedim(0, -1),
    lambda t, n: t.unbind(0)[0],
    lambda t, n: t.split(2, 0),
    lambda t, n: t.real,
    lambda t, n: t[None],
    lambda t, n: torch.view_as_real(t),
    lambda t, n: t.view(torch.float64) if t.is_complex() else t.view(torch.int32) if t.numel() and not t.is_floating_point() else t,
    lambda t, n: t.select(-1, 0),
    lambda t, n: t.swapaxes(0, 1),
    lambda t, n: t[:, None],
    lambda t, n: t[()],
    lambda t, n: t.expand_as(t),
    lambda t, n: t.view_as(t),
    lambda t, n: t[..., :0],
    lambda t, n: t.data,
]
IN_PLACE: list[Callable[[torch.Tensor, int], Any]] = [
    lambda t, n: t.add_(n),
    lambda t, n: t.mul_(0.5),
    lambda t, n: t.zero_(),
    lambda t, n: t.fill_(n),
    lambda t, n: t.sin_(),
    lambda t, n: t.clamp_(-1, 1),
    lambda t, n: t.__setitem__(0, n),
    lambda t, n: t.__setitem__((..., 0), n),
    lambda t, n: t.__setitem__(slice(1, None), n),
    lambda t, n: t.masked_fill_(t.detach().real < 0, n) if not t.is_floating_point() and not t.is_complex() else t.neg_(),
    lambda t, n: t.t_(),
    lambda t, n: t.unsqueeze_(0),
    lambda t, n: t.squeeze_(),
    lambda t, n: t.transpose_(0, -1),
    lambda t, n: t.copy_(t.clone() * 2),
    lambda t, n: t.relu_(),
    lambda t, n: t.add_(t),
    lambda t, n: t.sub_(1, alpha=2),
    lambda t, n: t.addcmul_(t, t, value=0.1),
    lambda t, n: t.index_fill_(0, torch.tensor([0], device=t.device), n) if t.numel() else None,
    lambda t, n: (
        t.index_put_((torch.tensor([0, 0], device=t.device),), torch.ones((), dtype=t.dtype, device=t.device), accumulate=True)
        if t.numel()
        else None
    ),
    lambda t, n: t[0].add_(n),
    lambda t, n: t.T.mul_(2),
    lambda t, n: t.view(-1)[::2].add_(1),
    lambda t, n: t.diagonal().fill_(n),
    lambda t, n: t.cumsum_(0),
    lambda t, n: t.tril_(),
    lambda t, n: t.detach().add_(1),
    lambda t, n: t.lerp_(torch.ones_like(t), 0.25),
    lambda t, n: t.unfold(0, 2, 2).mul_(3),
    lambda t, n: t.expand(2, *t.shape).add_(1),
    lambda t, n: t.real.add_(1),
    lambda t, n: t.data.mul_(2),
    lambda t, n: t.requires_grad_(),
]
IN_PLACE_BINARY: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.sub_(b, alpha=0.5),
    lambda a, b: torch.add(a, b, out=a),
    lambda a, b: torch.mul(b, 2, out=a),
    lambda a, b: a.set_(b),
    lambda a, b: setattr(a, "data", b),
    lambda a, b: a.index_copy_(0, torch.tensor([0], device=a.device), b[:1]),
    lambda a, b: a.addmm_(b, b),
    lambda a, b: a[1:].copy_(b),
    lambda a, b: a.index_add_(0, torch.tensor([0, 0], device=a.device), b[:2]),
    lambda a, b: a.__setitem__(slice(0, 1), b),
    lambda a, b: torch.cat([a, b], out=a.new_empty(0)),
    lambda a, b: a.resize_(b.shape) if b.numel() <= a.numel() else None,
]


def functions_name(functions: list) -> str:
    return next(name for name, value in globals().items() if value is functions)


def on_one(functions: list, keep: bool) -> Callable[[random.Random], Callable[[Machine], None]]:
    def make(r: random.Random) -> Callable[[Machine], None]:
        which, target, number = r.randrange(len(functions)), r.randrange(64), r.randrange(5)

        def run(m: Machine) -> None:
            tensor = pick(m, target)
            if functions is IN_PLACE and overlaps(tensor):
                return
            function = functions[which]
            result = function(tensor, number) if functions in (VIEWS, IN_PLACE) else function(tensor)
            if keep:
                m.add(result)

        run.what = f"{functions_name(functions)}[{which}] of {target}, {number}"
        return run

    return make


def on_two(functions: list, keep: bool) -> Callable[[random.Random], Callable[[Machine], None]]:
    def make(r: random.Random) -> Callable[[Machine], None]:
        which, a, b = r.randrange(len(functions)), r.randrange(64), r.randrange(64)

        def run(m: Machine) -> None:
            if functions is IN_PLACE_BINARY:
                if which not in SHARING and undefined(pick(m, a), pick(m, b), which in READS_WHAT_IT_WROTE):
                    return
                if not pick(m, a).is_floating_point() and pick(m, b).requires_grad:
                    return  # the CPU makes the integers require a gradient
            result = functions[which](pick(m, a), pick(m, b))
            if keep:
                m.add(result)

        run.what = f"{functions_name(functions)}[{which}] of {a}, {b}"
        return run

    return make


def integer(r: random.Random) -> Callable[[Machine], None]:
    which, target = r.randrange(len(INTEGER)), r.randrange(64)

    def run(m: Machine) -> None:
        whole = [t for t in m.pool if not t.is_floating_point() and not t.is_complex()]
        if whole:
            m.add(INTEGER[which](whole[target % len(whole)]))

    return run


def factory(r: random.Random) -> Callable[[Machine], None]:
    which, number = r.randrange(len(FACTORIES)), r.randrange(4)
    return lambda m: m.add(FACTORIES[which](number, m.device))


def drop(r: random.Random) -> Callable[[Machine], None]:
    number = r.randrange(64)

    def run(m: Machine) -> None:
        if len(m.pool) > 2:
            del m.pool[number % len(m.pool)]

    return run


def backward(r: random.Random) -> Callable[[Machine], None]:
    number = r.randrange(64)

    def run(m: Machine) -> None:
        roots = [t for t in m.pool if t.requires_grad and t.is_floating_point()]
        if roots:
            roots[number % len(roots)].sum().backward()

    return run


def optimize(r: random.Random) -> Callable[[Machine], None]:
    kind, lr = r.randrange(4), r.choice([0.1, 0.01, 0.5])

    def run(m: Machine) -> None:
        leaves = [t for t in m.leaves if t.is_leaf and t.requires_grad and t.is_floating_point()]
        if not leaves:
            return
        if not m.optimizers or kind == 3:
            make = [
                lambda p: torch.optim.SGD(p, lr, momentum=0.9),
                lambda p: torch.optim.Adam(p, lr),
                lambda p: torch.optim.AdamW(p, lr, amsgrad=True),
                lambda p: torch.optim.SGD(p, lr),
            ][kind]
            m.optimizers[:] = [make(leaves)]
        for group in m.optimizers[0].param_groups:
            group["lr"] *= 0.9
        m.optimizers[0].step()

    return run


def boundary(r: random.Random) -> Callable[[Machine], None]:
    kind = r.randrange(4)

    def run(m: Machine) -> None:
        m.boundary(kind)
        if kind == 3 and m.pool:
            m.pool[-1].detach().cpu()

    return run


KINDS: list[tuple[int, Callable[[random.Random], Callable[[Machine], None]], str]] = [
    (4, create, "create"),
    (2, factory, "factory"),
    (6, on_one(UNARY, True), "unary"),
    (2, integer, "integer"),
    (5, on_two(BINARY, True), "binary"),
    (8, on_one(VIEWS, True), "view"),
    (8, on_one(IN_PLACE, False), "in place"),
    (5, on_two(IN_PLACE_BINARY, False), "in place, two"),
    (2, drop, "drop"),
    (2, backward, "backward"),
    (1, optimize, "optimize"),
    (4, lowered, "lowered"),
]


def generate(r: random.Random, length: int, boundaries: float = 0.05) -> list[Instruction]:
    """A program of about ``length`` instructions, with that share of boundaries among them."""
    weights = [weight for weight, _, _ in KINDS]
    program: list[Instruction] = [("create", create(r)), ("create", create(r))]
    for _ in range(length):
        if r.random() < boundaries:
            program.append(("boundary", boundary(r)))
        _, make, name = r.choices(KINDS, weights)[0]
        program.append((name, make(r)))
    return program


def run(program: list[Instruction], truth: Machine, ours: Machine) -> list[str]:
    """Runs every instruction on both machines, in step; an error is noted by its kind, and the program goes on, as a notebook does.

    Returns what differs in kind (errors, sizes, strides) at the first instruction where something does. Values are compared at the end, by
    ``differences``, so that nothing is read in between. An operation that the CPU has no kernel for is left out on both.
    """
    for position, (name, instruction) in enumerate(program):
        before = [describe(t) for t in truth.pool]
        theirs = attempt(instruction, truth)
        if theirs is not None and theirs.startswith(UNSUPPORTED):
            continue
        mine = attempt(instruction, ours)
        replayed = theirs is None and mine is not None and any(words in mine for words in REPLAYED)
        unseen = mine is None and theirs is not None and "out of range" in theirs  # an index, which the device can't judge
        if replayed or unseen or any(attribute(t, "is_leaf") is DEAD for t in (*truth.pool, *ours.pool)):
            # Autograd has to take a view again after its base has changed: by its operation, where a device has no `as_strided` (PyTorch
            # holds xla for one), and that may not fit any more. The program ends here.
            truth.pool.clear()
            ours.pool.clear()
            return []
        where = f"at {position} {name} {getattr(instruction, 'what', '')} with {before}"
        if (theirs is None) != (mine is None):
            return [f"{where}: {theirs} on the CPU, {mine} here"]
        found = [(describe(a), describe(b)) for a, b in zip(truth.pool, ours.pool, strict=False) if describe(a) != describe(b)]
        if found or len(truth.pool) != len(ours.pool):
            return [f"{where}: (CPU, here) {found or (len(truth.pool), len(ours.pool))}"]
    return []


UNSUPPORTED = "NotImplementedError"
# The view doesn't fit any more; or it was transposed in place, which its operation doesn't know of.
REPLAYED = ("is invalid for input of size", "returned an invalid gradient")


def attempt(instruction: Callable[[Machine], None], machine: Machine) -> str | None:
    try:
        instruction(machine)
    except ERRORS as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def describe(tensor: torch.Tensor) -> tuple:
    """What must be the same at once. Strides count where there is something to stride over."""
    strides = tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1) if tensor.numel() else None
    return tuple(tensor.shape), strides, tensor.dtype, tensor.requires_grad


def alias(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


# Positions in IN_PLACE_BINARY: out= of another size over the operand's own memory, addmm_ into its operand; and set_ and .data, which write
# nothing.
READS_WHAT_IT_WROTE = {4, 5, 9}
SHARING = {6, 7}


def undefined(target: torch.Tensor, source: torch.Tensor, same_too: bool) -> bool:
    """Whether PyTorch leaves open what a write gives: the target overlaps itself, or the source in another way than being it."""
    same = target.shape == source.shape and target.stride() == source.stride() and target.data_ptr() == source.data_ptr()
    return overlaps(target) or (alias(target, source) and (same_too or not same))


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements lie on top of each other: what PyTorch does when such a tensor is written is undefined."""
    index = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        index += (torch.arange(size) * stride).view([-1 if d == dim else 1 for d in range(tensor.ndim)])
    return index.unique().numel() < index.numel()


def differences(truth: Machine, ours: Machine) -> list[str]:
    """What is not the same on both machines."""
    found = []
    single = any(tensor.dtype in SINGLE for tensor in truth.pool)  # what is double may come of it
    for position, (theirs, mine) in enumerate(zip(truth.pool, ours.pool, strict=True)):
        found += [f"tensor {position}: {what}" for what in _differences(theirs, mine, 1e-5 if single else 1e-7)]
    for a in range(len(truth.pool)):
        for b in range(a):
            same = truth.pool[a].untyped_storage().data_ptr() == truth.pool[b].untyped_storage().data_ptr() != 0
            here = ours.pool[a].untyped_storage().data_ptr() == ours.pool[b].untyped_storage().data_ptr()
            if same != here and truth.pool[a].numel() and truth.pool[b].numel():
                found.append(f"tensors {a} and {b}: {'aliases' if same else 'no aliases'} on the CPU")
    return found


def attribute(tensor: torch.Tensor, name: str) -> Any:
    try:
        return getattr(tensor, name)
    except ERRORS:  # a view whose base was changed so that autograd can't take the view again
        return DEAD


DEAD = "dead"
SINGLE = (torch.float32, torch.complex64)


def _differences(theirs: torch.Tensor, mine: torch.Tensor, tolerance: float) -> list[str]:
    found = []
    dead = DEAD in (attribute(theirs, "is_leaf"), attribute(mine, "is_leaf"))
    for what in ("shape", "dtype") if dead else ("shape", "dtype", "requires_grad", "is_leaf"):
        if getattr(theirs, what) != getattr(mine, what):
            found.append(f"{what} {getattr(theirs, what)} on the CPU, {getattr(mine, what)} here")
    if dead:
        return found
    if (theirs.grad is None) != (mine.grad is None):
        found.append("one has a gradient")
    elif theirs.grad is not None and attribute(theirs, "is_leaf") is True:
        found += [f"gradient: {what}" for what in _differences(theirs.grad, mine.grad, tolerance)]
    if not found:
        a, b = theirs.detach(), mine.detach().cpu()
        if a.is_floating_point() or a.is_complex():
            if not torch.allclose(a, b, equal_nan=True, rtol=tolerance, atol=tolerance):
                found.append(f"values {a} on the CPU, {b} here")
        elif not torch.equal(a, b):
            found.append(f"values {a} on the CPU, {b} here")
    return found
