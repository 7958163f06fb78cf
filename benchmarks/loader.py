"""Whether batches are fetched while the step before them runs: a loop over a plain loader, and one over ``MpDeviceLoader``.

Fetching a batch takes as long as a step, by waiting (as for a disk) or by work (as decoding is). Without overlap an iteration takes the sum
of both, with perfect overlap the longer of them. All are measured in turns; what is said are the medians of the rounds' ratios.

    python benchmarks/loader.py [--rounds N] [--batches N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

import surestep
from surestep.torch_xla.distributed.parallel_loader import MpDeviceLoader


class Batches:
    """A loader whose batches take a while."""

    def __init__(self, count: int, seconds: float, way: str):
        self.count, self.seconds, self.way = count, seconds, way
        self.x, self.y = torch.randn(128, 784), torch.randint(10, (128,))
        self.image = np.random.default_rng(0).random((128, 784), np.float32)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.count):
            end = time.perf_counter() + self.seconds
            if self.way == "waiting":
                time.sleep(self.seconds)
            while time.perf_counter() < end:
                np.tanh(self.image)
            yield self.x, self.y


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()

    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @surestep.compile
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def plain(loader: Batches) -> None:
        for x, y in loader:
            step(x.to("xla"), y.to("xla")).item()  # so that the next batch isn't fetched while the step runs

    def ahead(loader: Batches) -> None:
        for x, y in MpDeviceLoader(loader, "xla"):
            step(x, y).item()

    def seconds(loop: object, loader: object) -> float:
        start = time.perf_counter()
        loop(loader)  # type: ignore[operator]
        return (time.perf_counter() - start) / options.batches

    seconds(plain, Batches(4, 0.0, "waiting"))
    print("| fetching is | step, ms | fetching, ms | plain loop / sum | `MpDeviceLoader` / sum | `MpDeviceLoader` / longer one |")
    print("|---|---|---|---|---|---|")
    for way in ("waiting", "work"):
        rounds = []
        for _ in range(options.rounds):
            alone = seconds(plain, Batches(options.batches, 0.0, way))
            slow = Batches(options.batches, alone, way)
            fetching = seconds(list, slow)
            rounds.append((alone, fetching, seconds(plain, slow), seconds(ahead, slow)))
        ratios = [(plain / (a + f), ahead / (a + f), ahead / max(a, f)) for a, f, plain, ahead in rounds]
        figures = [1e3 * statistics.median(column) for column in list(zip(*rounds, strict=True))[:2]]
        found = [*figures, *map(statistics.median, zip(*ratios, strict=True))]
        print(f"| {way} | {' | '.join(f'{value:.3g}' for value in found)} |")


if __name__ == "__main__":
    main()
