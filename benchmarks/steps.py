"""Whole training steps, ours beside PyTorch eager's and hand-written JAX's: the same weights, batch and number of steps.

One process a peer; they take turns, round by round, so that what else the machine does meets all of them. Medians of the rounds and their
range; ratios are medians of the rounds' ratios.

    python benchmarks/steps.py [--rounds 7] [--workloads mlp-tiny-sgd,cnn] [--peers eager,jax,compiled] [--json FILE]

``--torch-xla COMMAND`` adds torch_xla, under ``step()`` and compiled, by an interpreter that has it, such as that of a virtual environment
with torch_xla 2.9.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from typing import Any

from models import WORKLOADS, Workload, build, optimizer


def _training(name: str, workload: Workload, device: str, around: Any = lambda forward: forward) -> tuple[Any, Any, Any]:
    """A training step as a function of the batch, and the batch; ``around`` is given the function (x, y) -> loss."""
    import torch

    model, x, y = build(name)
    model.to(device)
    x, y = x.to(device), y.to(device)
    loss_of = getattr(torch.nn.functional, "mse_loss" if workload.loss == "mse" else "cross_entropy")
    opt = optimizer(workload, model.parameters())
    forward = around(lambda x, y: loss_of(model(x), y))

    def body(x: Any, y: Any) -> Any:
        loss = forward(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    return body, x, y


def _eager(name: str, workload: Workload, inductor: bool) -> tuple[Any, Any, Any]:
    import torch

    body, x, y = _training(name, workload, "cpu", torch.compile if inductor else lambda forward: forward)
    last: list[Any] = [None]

    def step() -> None:
        last[0] = body(x, y)

    return step, lambda: None, lambda: float(last[0])


def _on_xla(name: str, workload: Workload, how: str, module: Any, wait: Any) -> tuple[Any, Any, Any]:
    """``module`` has torch_xla's ``step`` and ``compile``."""
    body, x, y = _training(name, workload, "xla")
    last: list[Any] = [None]

    if how == "compiled":
        compiled = module.compile(body)

        def step() -> None:
            last[0] = compiled(x, y)
    elif how == "step":

        def step() -> None:
            with module.step():
                last[0] = body(x, y)
    else:

        def step() -> None:
            last[0] = body(x, y)

    return step, wait, lambda: float(last[0])


def _ours(name: str, workload: Workload, how: str) -> tuple[Any, Any, Any]:
    import surestep

    return _on_xla(name, workload, how, surestep, lambda: surestep.sync(wait=True))


def _torch_xla(name: str, workload: Workload, how: str) -> tuple[Any, Any, Any]:
    import torch_xla.core.xla_model as xm

    import torch_xla

    def wait() -> None:
        torch_xla.sync()
        xm.wait_device_ops()

    return _on_xla(name, workload, how, torch_xla, wait)


def _jax(name: str, workload: Workload) -> tuple[Any, Any, Any]:
    import by_hand
    import jax
    import numpy as np

    model, x, y = build(name)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    buffers = {key: value for key, value in state.items() if "running_" in key}
    parameters = {key: value for key, value in state.items() if key not in buffers and "num_batches" not in key}

    def sent(value: Any) -> Any:
        return jax.device_put(value.astype(np.int32) if value.dtype == np.int64 else value)

    parameters, buffers = ({key: sent(value) for key, value in each.items()} for each in (parameters, buffers))
    x, y = sent(x.numpy()), sent(y.numpy())
    now = [None, parameters, buffers, by_hand.first_state(workload, parameters)]
    function = by_hand.make(name, workload)

    def step() -> None:
        now[:] = function(*now[1:], x, y)

    return step, lambda: jax.block_until_ready(now), lambda: float(now[0])  # type: ignore[arg-type]


PEERS = {
    "eager": lambda name, workload: _eager(name, workload, inductor=False),
    "torch.compile": lambda name, workload: _eager(name, workload, inductor=True),
    "jax": _jax,
    "step": lambda name, workload: _ours(name, workload, "step"),
    "no boundary": lambda name, workload: _ours(name, workload, "none"),
    "compiled": lambda name, workload: _ours(name, workload, "compiled"),
}
OTHERS = {
    "torch_xla step": lambda name, workload: _torch_xla(name, workload, "step"),
    "torch_xla compiled": lambda name, workload: _torch_xla(name, workload, "compiled"),
}


def _start_xla() -> None:
    """A small program: what XLA's compiler takes once (45 MB) is nobody's step, and hand-written JAX took it as it made its state."""
    import jax
    import jax.numpy as jnp

    ones = jnp.ones((8, 8))
    jax.block_until_ready(jax.jit(lambda x: x @ x + jnp.sum(x))(ones))


def work(peer: str, name: str) -> None:
    """A peer's process: says what it measured for each line that it reads."""
    workload = WORKLOADS[name]
    step, wait, loss = (PEERS | OTHERS)[peer](name, workload)
    if "jax" in sys.modules:
        _start_xla()
    wait()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    for _ in range(4):
        step()
    wait()
    first = time.perf_counter() - start
    fourth = loss()
    for _ in range(4):
        step()
    wait()
    sys.stdout.write(json.dumps({"first four steps s": round(first, 3), "loss after 4": fourth}) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(workload.steps):
            step()
        wait()
        seconds = (time.perf_counter() - start) / workload.steps
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
        sys.stdout.write(json.dumps({"seconds": seconds, "MB above start": round(peak, 1)}) + "\n")
        sys.stdout.flush()


def measure(name: str, peers: list[str], rounds: int, torch_xla: list[str]) -> dict[str, dict[str, Any]]:
    """All peers on one workload, in turn; those in ``OTHERS`` by the command ``torch_xla``."""
    # all compile anew
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package's modules aren't compiled at each start
    processes: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:  # one after the other: each compiles and warms up alone
        command = [*(torch_xla if peer in OTHERS else [sys.executable]), __file__, "--work", peer, name]
        process = processes[peer] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"{peer} did not begin {name}: {shlex.join(command)} ended with status {process.wait()}")
        found[peer] = json.loads(line)

    def ask(peer: str) -> dict[str, Any]:
        process = processes[peer]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    times: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            answer = ask(peer)
            times[peer].append(answer["seconds"] * 1e3)
            found[peer]["MB above start"] = answer["MB above start"]
    for peer, process in processes.items():
        process.communicate()
        found[peer]["ms a step"] = round(statistics.median(times[peer]), 4)
        found[peer]["range"] = [round(min(times[peer]), 4), round(max(times[peer]), 4)]
        for other in ("jax", "eager"):
            if other in times:
                ratios = [a / b for a, b in zip(times[peer], times[other], strict=True)]
                found[peer][f"/ {other}"] = round(statistics.median(ratios), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--torch-xla", metavar="COMMAND", type=shlex.split, default=[], help="an interpreter that has torch_xla")
    parser.add_argument("--json", help="append the results here")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    peers = [*options.peers.split(","), *(OTHERS if options.torch_xla else ())]
    for name in options.workloads.split(","):
        found = measure(name, peers, options.rounds, options.torch_xla)
        for peer, values in found.items():
            print(f"{name:15} {peer:12}", json.dumps(values), flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({name: found}) + "\n")


if __name__ == "__main__":
    main()
