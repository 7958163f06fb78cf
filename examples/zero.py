"""Trains on handwritten digits with the optimizer's state sharded over the processes (ZeRO-1); each has whole weights.

    surestep run examples/zero.py                                              # one process
    CPU_NUM_DEVICES=2 surestep run examples/zero.py                            # two, on the CPU
    torchrun --nproc-per-node 2 --no-python surestep run examples/zero.py      # two that torchrun starts

`optimizer.step()` reduces the gradients to each process's part, clips their norm, updates the part, and gathers the new weights. The result
is that of one process on whole batches, up to rounding. Each step is one program in each process.
"""

import argparse

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

import torch_xla


def load_data():
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target))


def make_model():
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def train(index, options):
    torch.manual_seed(0)  # the same weights in all processes
    model = make_model().to(torch_xla.device())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, max_norm=1.0, lr=0.05, momentum=0.9)
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
                loss.backward()
                optimizer.step()
        mean = xm.mesh_reduce("loss", loss.item(), lambda losses: sum(losses) / len(losses))
        xm.master_print(f"epoch {epoch}: loss {mean:.4f}")

    xm.save(model.state_dict(), options.checkpoint)
    xm.master_print(f"saved {options.checkpoint}, trained by {xr.world_size()} process(es)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--checkpoint", default="digits-zero.pt")
    torch_xla.launch(train, args=(parser.parse_args(),))
