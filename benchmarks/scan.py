"""How long it takes until a model's first training step is done, compilation and all: its layers one by one, or by ``scan_layers``.

One process a measurement, without programs kept from runs before. Processor seconds are those of all its threads; they hang less on what
else the machine does. Forward and backward pass of transformer layers of width 128, batches of 4 x 64; ``--optimizer`` adds AdamW's step.

    python benchmarks/scan.py [--layers 1,10,100] [--ways loop,scan,checkpointed] [--optimizer]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time


def work(way: str, count: int, optimizer: bool) -> None:
    """One measurement, printed."""
    import torch
    from functorch.compile import min_cut_rematerialization_partition
    from models import Layer

    import surestep
    from surestep.control.layers import scan_layers

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[Layer(128, 4) for _ in range(count)]).to("xla")
    x = torch.randn(4, 64, 128).to("xla")
    opt = torch.optim.AdamW(layers.parameters()) if optimizer else None
    ways = {
        "loop": lambda: layers(x),
        "scan": lambda: scan_layers(layers, x),
        "checkpointed": lambda: scan_layers(layers, x, partition_fn=min_cut_rematerialization_partition),
    }

    def step() -> tuple[float, float]:
        start, processor = time.perf_counter(), time.process_time()
        with surestep.step():
            layers.zero_grad()
            loss = ways[way]().square().mean()
            loss.backward()
            if opt is not None:
                opt.step()
        surestep.sync(wait=True)
        return time.perf_counter() - start, time.process_time() - processor

    surestep.sync(wait=True)
    surestep.clear_metrics()
    first, processor = step()
    compiled = surestep.metrics().compile
    later = [step()[0] for _ in range(3)]
    found = {
        "first step s": round(first, 2),
        "of the processors s": round(processor, 2),
        "compile s": round(compiled.total, 2),
        "programs": compiled.count,
        "later ms": round(min(later) * 1e3, 1),
    }
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="1,10,100")
    parser.add_argument("--ways", default="loop,scan,checkpointed")
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], int(options.work[1]), options.optimizer)
        return
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    for count in options.layers.split(","):
        for way in options.ways.split(","):
            command = [sys.executable, __file__, "--work", way, count, *(["--optimizer"] if options.optimizer else [])]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            print(f"{count:>4} layers, {way:12}", done.stdout.strip() or done.stderr, flush=True)


if __name__ == "__main__":
    main()
