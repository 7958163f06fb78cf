"""The loop of the bug report: no sync() anywhere, and it trains all the same.

    surestep run examples/missing_sync.py            # the loop as reported
    surestep run examples/missing_sync.py --fixed    # with sync() after backward and after the step

Under torch_xla 2.9 the reported loop records an endless graph and trains nothing. Here the end of optimizer.step() is a boundary where no
step() is open: both loops end with the same weights, and the summary names the line where a boundary was missing.
"""

import argparse

import torch
import torch.nn as nn

import torch_xla

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()

device = torch_xla.device()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

x = torch.randn(16, 32).to(device)
target = torch.ones(16, 1, device=device)

weight_before = model[0].weight.detach().clone()
torch_xla.sync()
weight_before_cpu = weight_before.cpu()

for _ in range(options.steps):
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    if options.fixed:
        torch_xla.sync()
    optimizer.step()
    optimizer.zero_grad()
    if options.fixed:
        torch_xla.sync()

torch_xla.sync()
weight_after_cpu = model[0].weight.detach().cpu()
difference = float((weight_after_cpu - weight_before_cpu).abs().max())
print(f"weight change: {difference:.6f}, loss: {loss.item():.6f}")
