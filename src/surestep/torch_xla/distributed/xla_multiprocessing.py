"""torch_xla.distributed.xla_multiprocessing (`xmp`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surestep.execute.world import world
from surestep.loop.replicas import rendezvous
from surestep.parallel.launcher import launch, spawn

__all__ = ["MpModelWrapper", "MpSerialExecutor", "launch", "spawn"]


class MpModelWrapper:
    """Holds a model made before ``spawn``; ``to`` moves it."""

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """The model, on the device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function once a process, one process after the other: what they all download or build is there for the second."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """``fn()``, when it is this process's turn."""
        result = None
        for rank in range(world().size):
            if rank == world().rank:
                result = fn()
            rendezvous("MpSerialExecutor")
        return result
