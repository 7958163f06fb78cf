"""Waiting for the device: a sync that waits returns when the programs are over, and what failed there is said with its program."""

from __future__ import annotations

import time

import pytest
import torch

import surestep
from surestep.execute.running import Running


def heavy():
    x = torch.ones(700, 700, device="xla")
    surestep.sync(wait=True)
    return x


def work(x):
    for _ in range(12):
        x = x @ x * 1e-3
    return x


@pytest.mark.parametrize("how", ["step", "sync", "compiled"])
def test_a_sync_that_waits(how):
    x = heavy()
    compiled = surestep.compile(work)
    for _ in range(4):
        result = compiled(x) if how == "compiled" else work(x)
        surestep.sync(wait=True)
    if how == "compiled":
        result = compiled(x)
        surestep.sync(wait=True)
    elif how == "step":
        with surestep.step():
            result = work(x)
        surestep.sync(wait=True)
    else:
        result = work(x)
        surestep.sync(wait=True)
    assert result._storage.array.is_ready()


def test_a_sync_that_does_not_wait_returns_at_once():
    x = heavy()
    work(work(x))
    start = time.perf_counter()
    kept = work(work(x))
    surestep.sync()
    started = time.perf_counter() - start
    surestep.sync(wait=True)
    assert started < time.perf_counter() - start
    assert kept._storage.array.is_ready()


def test_little_is_held():
    recorder = surestep.tensor.devices.recorders()[0]
    x = torch.ones(4, device="xla")
    for _ in range(200):
        x = x + 1
        surestep.sync()
    surestep.sync(wait=True)
    assert not recorder.running.runs


class Output:
    def __init__(self, ready=True, deleted=False, error=None):
        self.ready, self.deleted, self.error = ready, deleted, error

    def is_ready(self):
        return self.ready

    def is_deleted(self):
        return self.deleted

    def block_until_ready(self):
        assert not self.deleted
        if self.error:
            raise RuntimeError(self.error)


def test_a_failure_names_its_program():
    running = Running()
    running.add(Output(), "one")
    running.add(Output(error="out of memory"), "two")
    running.add(Output(deleted=True, error="unseen"), "three")
    with pytest.raises(RuntimeError, match="two failed while it ran on the device: out of memory"):
        running.check()
    running.add(Output(ready=False), "four")
    running.check()
    assert [name for _, name in running.runs] == ["four"]
    running.wait()
    assert not running.runs
