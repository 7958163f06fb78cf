"""What a step costs in two processes on one machine beside one process alone, each on a batch of the same size: time, programs, bytes.

Each measurement is a run of its own, all of them in turns; times are medians of the runs. The processes share the machine's cores, so that
two take at least twice the work of one: where one process uses all cores, an overhead of 2 is what there is to be had.

    python benchmarks/processes.py [--rounds N] [--steps N]
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections import defaultdict

sys.path.append(str(pathlib.Path(__file__).parent.parent / "scripts"))

STYLES = ("alone", "optimizer_step", "DDP", "FSDP", "ZeRO")
WIDTH, LAYERS, TOKENS, BATCH = 128, 4, 32, 16


def work(index: int, style: str, steps: int) -> None:
    """One process's part of one measurement; the first one prints it."""
    import scaling
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import surestep
    import surestep.torch_xla.core.xla_model as xm
    import surestep.torch_xla.distributed.xla_backend
    from surestep.tensor import devices
    from surestep.torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
    from surestep.torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from surestep.torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer
    model = nn.Sequential(*[layer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)])
    if style == "FSDP":
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer})
        model = XlaFullyShardedDataParallel(model, auto_wrap_policy=policy)
    else:
        model = model.to("xla")
    if style == "DDP":
        dist.init_process_group("xla", init_method="xla://")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if style == "ZeRO":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(BATCH, TOKENS, WIDTH).to("xla")

    def train(count: int) -> None:
        for _ in range(count):
            with surestep.step():
                optimizer.zero_grad()
                model(x).square().mean().backward()
                xm.optimizer_step(optimizer) if style == "optimizer_step" else optimizer.step()
        surestep.sync(wait=True)

    train(12)  # DDP's first step, and the comparisons of the replicas after steps 1, 2 and 10
    surestep.clear_metrics()
    start = time.perf_counter()
    train(steps)
    seconds = time.perf_counter() - start
    metrics = surestep.metrics()
    text = devices.started()[0].ran.executable.as_text()  # type: ignore[missing-attribute]
    sent = sum(scaling.sent(kind, scaling.size(shapes), 2) for shapes, kind in scaling.COLLECTIVE.findall(text))
    found = {"ms": 1e3 * seconds / steps, "programs": metrics.compile.count, "runs": metrics.run.count / steps, "sent": sent}
    xm.master_print(json.dumps(found))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--of", choices=STYLES)
    options = parser.parse_args()
    if options.of:
        from surestep.torch_xla.distributed.xla_multiprocessing import spawn

        spawn(work, (options.of, options.steps), nprocs=1 if options.of == "alone" else 2)
        return

    rounds = defaultdict(list)
    for _ in range(options.rounds):
        for style in STYLES:
            command = (sys.executable, __file__, "--of", style, "--steps", str(options.steps))
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rounds[style].append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
    print("| two processes | ms a step | / one process | programs compiled after the first steps | runs a step | sent, MB a step |")
    print("|---|---|---|---|---|---|")
    for style, found in rounds.items():
        ms = statistics.median(run["ms"] for run in found)
        ratio = statistics.median(run["ms"] / alone["ms"] for run, alone in zip(found, rounds["alone"], strict=True))
        last = found[-1]
        print(f"| {style} | {ms:.3g} | {ratio:.2f} | {last['programs']} | {last['runs']:g} | {last['sent'] / 1e6:.3g} |")


if __name__ == "__main__":
    main()
