"""What tests/test_spmd.py runs in two processes of four devices each: training, held against CPU eager. Its argument is what is special."""

import sys

import numpy as np
import torch
from torch import nn

import surestep
import surestep.torch_xla.distributed.spmd as xs
import surestep.torch_xla.runtime as xr
from surestep.parallel.connection import leave


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).double()


def main(special: str) -> None:
    xr.use_spmd()
    devices = xr.global_runtime_device_count()
    assert (devices, xr.addressable_runtime_device_count(), xr.process_count(), xr.world_size()) == (8, 4, 2, 1)
    mesh = xs.Mesh(np.arange(devices), (4, 2), ("data", "model"))
    truth, ours = model(), model().to("xla")
    xs.mark_sharding(ours[0].weight, mesh, ("model", "data"))
    spec = xs.ShardingSpec(mesh, ("data", None), minibatch=special == "own batches")
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-2) for one in (truth, ours)]
    for step in range(4):
        batch = torch.randn(16, 16, dtype=torch.float64)
        optimizers[0].zero_grad()
        expected = truth(batch).square().mean()
        expected.backward()
        optimizers[0].step()
        part = batch.chunk(2)[xr.process_index()] if spec.minibatch else batch
        with surestep.step():
            optimizers[1].zero_grad()
            loss = ours(spec.to_device(part)).square().mean()
            loss.backward()
            optimizers[1].step()
        assert abs(loss.item() - expected.item()) < 1e-9
        if special == "one computes alone" and step == 2 and xr.process_index() == 0:
            (loss * 2).item()
    for mine, theirs in zip(ours.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-9, atol=1e-9)
    assert len(ours[0].weight.local_shards) == 4
    assert surestep.metrics().compile.count == 1
    leave()
    print("all is well")


main(sys.argv[1])
