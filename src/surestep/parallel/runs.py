"""One run of all processes, among others that had the same store before: torchrun keeps its store when it starts the processes again, and
all that they have written there. What a process of an earlier run has said must not be taken for a word of this one.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from surestep.execute.world import World


def named(store: dist.Store, place: World, patience: timedelta) -> str:
    """A name that all processes of this run have, and those of no other; waits for all of them.

    Each says that it is there, by a word of its own; the first one answers with the run's name and all words that it has heard. A process
    whose own word is among them is meant.

    Raises:
        RuntimeError: Not all have come in time.
    """
    word, deadline = uuid.uuid4().hex, time.monotonic() + patience.total_seconds()
    return _first(store, place, word, deadline) if place.rank == 0 else _other(store, place, word, deadline)


def _first(store: dist.Store, place: World, word: str, deadline: float) -> str:
    heard: dict[int, str] = {}
    others = range(1, place.size)
    answers = [f"run/{word}/{rank}" for rank in others]
    while not store.check(answers):
        now = {rank: store.get(f"here/{rank}").decode() for rank in others if store.check([f"here/{rank}"])}
        if now != heard:
            heard = now
            store.set("run", json.dumps([word, heard]))
        _pause(deadline, f"rank(s) {[rank for rank, answer in zip(others, answers, strict=True) if not store.check([answer])]}")
    return word


def _other(store: dist.Store, place: World, word: str, deadline: float) -> str:
    store.set(f"here/{place.rank}", word)
    while True:
        name, heard = json.loads(store.get("run")) if store.check(["run"]) else ("", {})
        if heard.get(str(place.rank)) == word:
            store.set(f"run/{name}/{place.rank}", "")
            return name
        _pause(deadline, "rank 0")


def _pause(deadline: float, who: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"{who} didn't come to where processes first use the device; do all use it, or has one failed?")
    time.sleep(0.005)
