"""What recording costs: an operation, as a ratio to the floor (an empty ``__torch_dispatch__`` that makes one wrapper), and the tiny MLP's
step under ``step()``, and an operation in eager mode, as ratios to CPU eager. Both sides of a ratio are timed in turn, round by round; the
medians of the rounds' ratios are printed.

    python benchmarks/recording.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import surestep
from surestep.loop import eager

_MAKE = torch.Tensor._make_wrapper_subclass
_DEVICE = torch.device("xla:0")


class Floor(torch.Tensor):
    """The least that a wrapper subclass can cost."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _MAKE(Floor, (32, 32), strides=(32, 1), dtype=torch.float32, device=_DEVICE)


def per_call(function: Callable[[], object], count: int) -> float:
    """Microseconds a call."""
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count * 1e6


def recording(rounds: int = 15, count: int = 400) -> dict[str, float]:
    """Chains of one operation, cut after every round outside the clock."""
    base = _MAKE(Floor, (32, 32), strides=(32, 1), dtype=torch.float32, device=_DEVICE)
    floors: dict[str, torch.Tensor] = {
        "no grad": base,
        "grad": _MAKE(Floor, (32, 32), strides=(32, 1), dtype=torch.float32, device=_DEVICE).requires_grad_(),
    }
    ours: dict[str, torch.Tensor] = {
        "no grad": torch.ones(32, 32, device="xla"),
        "grad": torch.ones(32, 32, device="xla", requires_grad=True),
    }
    operations: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda t: t + t,
        "mul by a number": lambda t: t * 2.0,
        "relu": torch.relu,
    }
    found = {}
    for grad in floors:
        for name, operation in operations.items():
            ratios, times = [], []
            for _ in range(rounds):
                surestep.sync(wait=True)
                kept = []
                mine = per_call(lambda: kept.append(operation(ours[grad])), count)  # noqa: B023
                kept.clear()
                floor = per_call(lambda: operation(floors[grad]), count)  # noqa: B023
                ratios.append(mine / floor)
                times.append(mine)
            found[f"{name}, {grad}: us"] = round(statistics.median(times), 2)
            found[f"{name}, {grad}: times the floor"] = round(statistics.median(ratios), 2)
    return found


def tiny_step(optimizer: Callable, rounds: int = 15, steps: int = 200) -> dict[str, float]:
    """Linear-ReLU-Linear, batch 16, a mean squared error and an optimizer, under step()."""

    def make(device: str) -> Callable[[], None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
        x, y = torch.randn(16, 32).to(device), torch.randn(16, 1).to(device)
        opt = optimizer(model.parameters())

        def one() -> None:
            opt.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            opt.step()

        def stepped() -> None:
            with surestep.step():
                one()

        return one if device == "cpu" else stepped

    cpu, xla = make("cpu"), make("xla")
    for _ in range(20):
        cpu()
        xla()
    ratios, times = [], []
    for _ in range(rounds):
        theirs = per_call(cpu, steps)
        start = time.perf_counter()
        for _ in range(steps):
            xla()
        surestep.sync(wait=True)
        mine = (time.perf_counter() - start) / steps * 1e6
        ratios.append(mine / theirs)
        times.append(mine)
    return {
        "us a step": round(statistics.median(times), 1),
        "times eager": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def eager_mode(rounds: int = 7) -> dict[str, list[float]]:
    """An operation that runs at once, on square matrices: microseconds here, and times CPU eager's."""
    operations: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda t: t + t,
        "relu": torch.relu,
        "softmax": lambda t: t.softmax(-1),
        "matmul": lambda t: t @ t,
    }
    found = {}
    eager.eager_mode(True)
    try:
        for size, count in ((32, 1000), (256, 300), (1024, 20)):
            cpu = torch.randn(size, size)
            xla = cpu.to("xla")
            for name, operation in operations.items():
                operation(xla), operation(cpu)
                times, ratios = [], []
                for _ in range(rounds):
                    theirs = per_call(lambda: operation(cpu), count)  # noqa: B023
                    start = time.perf_counter()
                    for _ in range(count):
                        operation(xla)
                    surestep.sync(wait=True)
                    times.append((time.perf_counter() - start) / count * 1e6)
                    ratios.append(times[-1] / theirs)
                found[f"{name}, {size} x {size}"] = [round(statistics.median(times), 1), round(statistics.median(ratios), 2)]
    finally:
        eager.eager_mode(False)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "recording": recording()}))
    print(json.dumps({"mlp-tiny SGD": tiny_step(lambda p: torch.optim.SGD(p, lr=0.01))}))
    print(json.dumps({"mlp-tiny AdamW": tiny_step(lambda p: torch.optim.AdamW(p, lr=1e-3))}))
    print(json.dumps({"eager mode: us, times eager": eager_mode()}))
