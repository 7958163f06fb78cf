"""Trains on handwritten digits with parameters, gradients and the optimizer's state sharded over the processes.

    surestep run examples/fsdp.py                                              # one process
    CPU_NUM_DEVICES=2 surestep run examples/fsdp.py                            # two, on the CPU
    torchrun --nproc-per-node 2 --no-python surestep run examples/fsdp.py      # two that torchrun starts

Each layer is a unit: its parameters are gathered when it is called, and again in the backward pass. The result is that of one process on
whole batches, up to rounding. Each step is one program in each process. Each process saves its own part of the checkpoint, and the first
one makes a whole one of them, which plain PyTorch loads.
"""

import argparse
import functools

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, consolidate_sharded_model_checkpoints
from torch_xla.distributed.fsdp.wrap import size_based_auto_wrap_policy

import torch_xla


def load_data():
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target))


def make_model():
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def train(index, options):
    torch.manual_seed(0)  # the same weights in all processes, before they are sharded
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=4000)
    model = XlaFullyShardedDataParallel(make_model(), auto_wrap_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # of the parts
    loss_fn = nn.CrossEntropyLoss()
    data = load_data()
    sampler = DistributedSampler(data, xr.world_size(), xr.global_ordinal(), seed=0, drop_last=True)
    loader = DataLoader(data, options.batch_size // xr.world_size(), sampler=sampler, drop_last=True)

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            with torch_xla.step():
                images, labels = images.to("xla"), labels.to("xla")
                optimizer.zero_grad()
                loss = loss_fn(model(images), labels)
                loss.backward()  # reduces the gradients to this process's part
                optimizer.step()
        mean = xm.mesh_reduce("loss", loss.item(), lambda losses: sum(losses) / len(losses))
        xm.master_print(f"epoch {epoch}: loss {mean:.4f}")

    part = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata(), "optimizer": optimizer.state_dict()}
    xm.save(part, f"{options.checkpoint}-{xr.global_ordinal()}.part", master_only=False)
    if xm.is_master_ordinal(local=False):
        state, _ = consolidate_sharded_model_checkpoints(f"{options.checkpoint}-", "*.part", save_model=False)
        torch.save(state, options.checkpoint)
    xm.master_print(f"saved {options.checkpoint}, trained by {xr.world_size()} process(es)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--checkpoint", default="digits-fsdp.pt")
    torch_xla.launch(train, args=(parser.parse_args(),))
