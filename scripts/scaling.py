"""What a step costs as the number of processes grows: compiles it for N replicas in one process, without running it, and asks XLA.

    python scripts/scaling.py 8 64 512

For each number, with whole weights, sharded ones, and those that SPMD shards over N devices: the bytes that a process (a device) holds
between steps and within one, the floating-point operations, the collectives of the compiled program, and the bytes that each process sends
by the algorithms that reach the bound (ring).
"""

import functools
import json
import math
import os
import re
import subprocess
import sys

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 6, 512, 8, 128, 4  # BATCH sequences of TOKENS on each process

SHAPE = re.compile(r"(f32|f64|bf16|s32|s64|u32|u8|pred)\[([0-9,]*)\]")
SIZES = {"f32": 4, "f64": 8, "bf16": 2, "s32": 4, "s64": 8, "u32": 4, "u8": 1, "pred": 1}
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def batch_first():
    """A layer as PyTorch's, with as many parameters, whose attention keeps the batch as its first dimension. PyTorch's puts it second, and
    XLA's partitioner then gathers the whole batch on each device.
    """
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            parts = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts)
            x = self.first(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
            return self.second(x + self.down(self.up(x).relu()))

    return Layer


def compiled(style, replicas):
    """The program of one process's step, or one device's part of it, and the bytes that it holds between steps."""
    import jax

    jax.config.update("jax_num_cpu_devices", replicas)
    from surestep.parallel import connection

    connection._connected.append(True)  # nothing is run together: there is nobody to find
    import numpy as np
    import torch
    from torch import nn

    import surestep
    import surestep.torch_xla.core.xla_model as xm
    from surestep.loop.boundaries import within_a_step
    from surestep.tensor import devices
    from surestep.torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
    from surestep.torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from surestep.torch_xla.distributed.spmd import Mesh, ShardingSpec
    from surestep.torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    theirs = functools.partial(nn.TransformerEncoderLayer, WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    layer = batch_first() if style == "SPMD" else theirs
    model = nn.Sequential(*[layer() for _ in range(LAYERS)])
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model[0])})
    x = torch.randn(BATCH, TOKENS, WIDTH)
    if style == "SPMD":
        mesh = Mesh(np.arange(replicas), (replicas,), ("fsdp",))
        model = SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
        x = ShardingSpec(mesh, ("fsdp", None, None)).to_device(x.repeat(replicas, 1, 1))
    else:
        model = XlaFullyShardedDataParallel(model, auto_wrap_policy=policy) if style == "FSDP" else model.to("xla")
        x = x.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    surestep.sync()
    held = 3 * sum(p._storage.array.addressable_shards[0].data.nbytes for p in model.parameters())  # with gradients and momentum
    with within_a_step():
        model(x).square().mean().backward()
        if style == "whole":
            xm.reduce_gradients(optimizer)
        optimizer.step()
    (recorder,) = devices.started()[:1]
    program = recorder._program(recorder.pending(), None)
    return program.executable, held


def size(shapes):
    """Bytes of the results that an instruction's text names."""
    return sum(SIZES[kind] * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in SHAPE.findall(shapes))


def sent(kind, result, replicas):
    """Bytes that each process sends in a ring. A reduce-scatter's result is a part of what goes in."""
    step = (replicas - 1) / replicas
    shares = {"all-reduce": 2 * step, "reduce-scatter": replicas - 1, "collective-permute": 1}
    return shares.get(kind, step) * result


def figures(style, replicas):
    """A line of the table."""
    executable, held = compiled(style, replicas)
    found = COLLECTIVE.findall(executable.as_text())
    return {
        "held": held,
        "temporary": executable.memory_analysis().temp_size_in_bytes,
        "operations": executable.cost_analysis()["flops"],
        "collectives": len(found),
        "sent": sum(sent(kind, size(shapes), replicas) for shapes, kind in found),
    }


def main(replicas):
    print("| replicas | weights | held, MB | in a step, MB | GFLOP | collectives | sent, MB |\n|---|---|---|---|---|---|---|")
    for count in replicas:
        for style in ("whole", "FSDP", "SPMD"):
            place = {"RANK": "0", "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
            if style == "SPMD":
                place = {"XLA_USE_SPMD": "1"}
            environ = {**os.environ, **place, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
            done = subprocess.run([sys.executable, __file__, "--of", style, str(count)], env=environ, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            numbers = (found["held"] / 1e6, found["temporary"] / 1e6, found["operations"] / 1e9, found["collectives"], found["sent"] / 1e6)
            print(f"| {count} | {style} |", " | ".join(f"{number:.4g}" for number in numbers), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(figures(sys.argv[2], int(sys.argv[3]))), flush=True)
        os._exit(0)  # at its end JAX would wait for the others
    main([int(count) for count in sys.argv[1:]])
