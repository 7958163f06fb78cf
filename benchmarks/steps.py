"""Whole training steps, ours beside PyTorch eager's and hand-written JAX's: the same weights, batch and number of steps.

One process a peer; they take turns, round by round, so that what else the machine does meets all of them. Medians of the rounds and their
range; ratios are medians of the rounds' ratios.

    python benchmarks/steps.py [--rounds 7] [--workloads mlp-tiny-sgd,cnn] [--peers eager,jax,compiled] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from models import WORKLOADS, Workload, build, optimizer


def _eager(name: str, workload: Workload) -> tuple[Any, Any, Any]:
    import torch

    model, x, y = build(name)
    loss_of = getattr(torch.nn.functional, "mse_loss" if workload.loss == "mse" else "cross_entropy")
    opt = optimizer(workload, model.parameters())
    last: list[Any] = [None]

    def step() -> None:
        loss = loss_of(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        last[0] = loss.detach()

    return step, lambda: None, lambda: float(last[0])


def _ours(name: str, workload: Workload, how: str) -> tuple[Any, Any, Any]:
    import torch

    import surestep

    model, x, y = build(name)
    model.to("xla")
    x, y = x.to("xla"), y.to("xla")
    loss_of = getattr(torch.nn.functional, "mse_loss" if workload.loss == "mse" else "cross_entropy")
    opt = optimizer(workload, model.parameters())
    last: list[Any] = [None]

    def body(x: Any, y: Any) -> Any:
        loss = loss_of(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    if how == "compiled":
        compiled = surestep.compile(body)

        def step() -> None:
            last[0] = compiled(x, y)
    elif how == "step":

        def step() -> None:
            with surestep.step():
                last[0] = body(x, y)
    else:

        def step() -> None:
            last[0] = body(x, y)

    return step, lambda: surestep.sync(wait=True), lambda: float(last[0])


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
    "eager": _eager,
    "jax": _jax,
    "step": lambda name, workload: _ours(name, workload, "step"),
    "no boundary": lambda name, workload: _ours(name, workload, "none"),
    "compiled": lambda name, workload: _ours(name, workload, "compiled"),
}


def work(peer: str, name: str) -> None:
    """A peer's process: says what it measured for each line that it reads."""
    workload = WORKLOADS[name]
    step, wait, loss = PEERS[peer](name, workload)
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


def measure(name: str, peers: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """All peers on one workload, in turn."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # all compile anew
    processes: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:  # one after the other: each compiles and warms up alone
        process = processes[peer] = subprocess.Popen(
            [sys.executable, __file__, "--work", peer, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        found[peer] = json.loads(process.stdout.readline())

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
    parser.add_argument("--json", help="append the results here")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    for name in options.workloads.split(","):
        found = measure(name, options.peers.split(","), options.rounds)
        for peer, values in found.items():
            print(f"{name:15} {peer:12}", json.dumps(values), flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({name: found}) + "\n")


if __name__ == "__main__":
    main()
