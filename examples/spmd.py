"""Trains a small GPT on Python's own documentation, over all devices of one process: the loop of the guide's Pattern 5 with input_sharding.

    surestep run examples/spmd.py                                              # one device
    CPU_NUM_DEVICES=8 surestep run examples/spmd.py                            # data parallel: each batch is split over 8 devices
    CPU_NUM_DEVICES=8 surestep run examples/spmd.py --parallel fsdp            # parameters and the optimizer's state are split too
    CPU_NUM_DEVICES=8 surestep run examples/spmd.py --parallel tensor          # each layer is split, two devices share a batch's part

The program is written as for one device. What is said besides is how some tensors lie over the devices; XLA's partitioner does the rest,
and the losses are those of one device, up to rounding.
"""

import argparse
import functools
import pydoc_data.topics

import numpy as np
import torch
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

import torch_xla

LENGTH, VOCABULARY = 64, 128


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.token(tokens) + self.position(places)))


def load_data():
    text = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)


def place(model, parallel, devices):
    """The model on the devices, and the mesh whose axis 'data' splits the batches."""
    if parallel == "fsdp":
        mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        return SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy), mesh, "fsdp"
    if parallel == "data":
        return model.to("xla"), xs.get_1d_mesh("data"), "data"
    shared = 2 if devices > 1 else 1
    mesh = xs.Mesh(np.arange(devices), (devices // shared, shared), ("data", "model"))
    model.to("xla")
    for block in model.blocks:  # what makes features is split by rows of the weight, what adds them up by columns
        for grows in (block.qkv, block.up):
            xs.mark_sharding(grows.weight, mesh, ("model", None))
            xs.mark_sharding(grows.bias, mesh, ("model",))
        for shrinks in (block.out, block.down):
            xs.mark_sharding(shrinks.weight, mesh, (None, "model"))
    return model, mesh, "data"


def main(options):
    xr.use_spmd()
    torch.manual_seed(0)
    model, mesh, axis = place(GPT(), options.parallel, xr.global_runtime_device_count())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(load_data(), batch_size=options.batch_size, shuffle=True, drop_last=True)
    device_loader = pl.MpDeviceLoader(loader, torch_xla.device(), input_sharding=xs.ShardingSpec(mesh, (axis, None)))

    for step, tokens in enumerate(device_loader):
        with torch_xla.step():
            optimizer.zero_grad()
            logits = model(tokens)[:, :-1]
            loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.5f}")
        if step + 1 == options.steps:
            break
    print(f"loss {loss.item():.5f}, over {mesh.size()} device(s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", choices=["data", "fsdp", "tensor"], default="data")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    main(parser.parse_args())
