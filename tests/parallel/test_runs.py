"""Runs one after the other over one store."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from surestep.execute.world import World
from surestep.parallel import runs

PATIENCE = timedelta(seconds=20)


def names(store, size, late):
    """What each rank takes for the run's name; the rank ``late`` comes last."""
    found = {}

    def rank(number):
        time.sleep(0.1 * (number == late))
        found[number] = runs.named(store, World(number, size, number, size), PATIENCE)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == size
    return set(found.values())


@pytest.mark.parametrize("size", [2, 4])
def test_each_run_has_a_name_of_its_own(size):
    """Whoever comes first finds what the run before has left."""
    store, before = dist.HashStore(), set()
    for late in (0, 1, size - 1, 0):
        (name,) = names(store, size, late)
        assert name not in before
        before.add(name)


@pytest.mark.parametrize(("rank", "who"), [(0, r"rank\(s\) \[1\]"), (1, "rank 0")])
def test_who_does_not_come_is_said(rank, who):
    with pytest.raises(RuntimeError, match=f"{who} didn't come to where processes first use the device"):
        runs.named(dist.HashStore(), World(rank, 2, rank, 2), timedelta(seconds=0.1))
