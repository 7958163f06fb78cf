"""``make fuzz N=20000``: many random programs against CPU eager; with ``--steps``, compiled steps whose Python changes (``changing.py``).

Programs are run a group at a time without a boundary between them, so that a group shares few compilations; a group that differs is run
again program by program. Seeds of programs that differ are printed and kept in tests/fuzz/seeds.txt, which the tests run again.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import random
import sys
import time
import warnings

# Compilation is nearly all of the time, and optimizing these small programs is no part of what is tested.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import changing
import torch
from program import Machine, differences, generate, run

import surestep

SEEDS = pathlib.Path(__file__).with_name("seeds.txt")


def xla_machine() -> Machine:
    def boundary(kind: int) -> None:
        surestep.sync(wait=kind == 1)

    return Machine("xla", boundary)


def compare(seeds: list[int], length: int) -> dict[int, list[str]]:
    """The differences of each seed's program, run as one group."""
    machines: dict[int, tuple[Machine, Machine]] = {}
    found: dict[int, list[str]] = {}
    for seed in seeds:
        truth, ours = machines[seed] = Machine("cpu", lambda kind: None), xla_machine()
        found[seed] = run(generate(random.Random(seed), length, boundaries=0.02), truth, ours)
    surestep.sync()
    return {seed: what for seed in seeds if (what := found[seed] or differences(*machines[seed]))}


def compare_steps(first: int, count: int) -> list[int]:
    """The seeds of compiled steps that differ."""
    logging.getLogger("surestep").setLevel(logging.ERROR)
    bad = []
    for done, seed in enumerate(range(first, first + count), 1):
        if what := changing.run(changing.generate(random.Random(seed)), surestep.compile):
            bad.append(seed)
            print(f"seed {seed}: " + "; ".join(what)[:1500], flush=True)
        if done % 50 == 0:
            print(f"{done} steps, {len(bad)} differ, {surestep.metrics().replays} calls replayed", file=sys.stderr, flush=True)
    print(f"{count} steps from seed {first}: {len(bad)} differ")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000, help="programs")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--group", type=int, default=20)
    parser.add_argument("--length", type=int, default=14)
    parser.add_argument("--steps", action="store_true", help="compiled steps whose Python changes between the calls")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.steps:
        return 1 if compare_steps(options.start, options.n) else 0
    bad: dict[int, list[str]] = {}
    start = time.time()
    for first in range(options.start, options.start + options.n, options.group):
        seeds = list(range(first, min(first + options.group, options.start + options.n)))
        if compare(seeds, options.length):
            for seed in seeds:
                bad.update(compare([seed], options.length))
                if seed in bad:
                    print(f"seed {seed}: " + "; ".join(bad[seed])[:1500], flush=True)
        done = seeds[-1] + 1 - options.start
        if done % (options.group * 10) == 0:
            print(f"{done} programs, {len(bad)} differ, {(time.time() - start) / done * 1e3:.0f} ms each", file=sys.stderr, flush=True)
    print(f"{options.n} programs from seed {options.start}: {len(bad)} differ")
    if bad:
        with SEEDS.open("a") as kept:
            kept.writelines(f"{seed}\n" for seed in bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
