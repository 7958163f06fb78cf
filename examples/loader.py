"""Trains from an MpDeviceLoader: the loop of the guide's Pattern 5.

    surestep run examples/loader.py

The loader reads ahead, and puts each batch on the device while the step before it runs. A boundary falls before each batch, so that the
loop
needs no sync() of its own; with step() around the iteration, as here, it is the step's end. xm.optimizer_step reduces the gradients over
all
replicas (here: one) and steps.
"""

import argparse

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla


def train(index, options):
    device = torch_xla.device()
    torch.manual_seed(0)
    inputs = torch.randn(options.samples, 16)
    targets = inputs @ torch.randn(16, 1) + 0.5
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True, drop_last=True)
    device_loader = pl.MpDeviceLoader(loader, device)

    model = nn.Linear(16, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        for data, target in device_loader:
            with torch_xla.step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(data), target)
                loss.backward()
                xm.optimizer_step(optimizer)
        xm.master_print(f"epoch {epoch}: loss {loss.item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1024)
    torch_xla.launch(train, args=(parser.parse_args(),))
