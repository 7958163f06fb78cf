"""Draws what ``steps.py --json`` has measured: a step's time, each peer's, as a ratio to PyTorch eager's.

python benchmarks/plot.py build/steps.jsonl docs/steps.svg
"""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "surestep"  # the same figures give the same file
matplotlib.rcParams["svg.fonttype"] = "none"


def read(path: str) -> dict[str, dict[str, dict[str, Any]]]:
    """By workload and peer; of a workload that was measured again, the last."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with open(path) as file:
        for line in file:
            found.update(json.loads(line))
    return found


def draw(measured: dict[str, dict[str, dict[str, Any]]], path: str) -> None:
    """One group of bars a workload, one bar a peer, each with its range; eager is the line at 1."""
    peers = [peer for peer in dict.fromkeys(peer for each in measured.values() for peer in each) if peer != "eager"]
    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    width = 0.8 / len(peers)
    for place, peer in enumerate(peers):
        xs, heights, below, above = [], [], [], []
        for group, each in enumerate(measured.values()):
            if peer in each:
                eager, mine = each["eager"]["ms a step"], each[peer]["ms a step"]
                low, high = each[peer]["range"]
                xs.append(group + (place - (len(peers) - 1) / 2) * width)
                heights.append(mine / eager)
                below.append((mine - low) / eager)
                above.append((high - mine) / eager)
        axes.bar(xs, heights, width * 0.9, yerr=(below, above), label=peer, error_kw={"linewidth": 0.8})
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(measured)), list(measured))
    axes.set_ylabel("time a step, times PyTorch eager's")
    axes.legend(ncols=len(peers), fontsize="small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(read(sys.argv[1]), sys.argv[2])
