"""torch_xla.distributed.xla_multiprocessing: with one process, the function runs in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from surestep._device import device_count

__all__ = ["MpModelWrapper", "MpSerialExecutor", "launch", "spawn"]


def spawn(
    fn: Callable[..., Any],
    args: tuple = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Calls ``fn(0, *args)`` in this process: one process with one device.

    Raises:
        NotImplementedError: More than one process, or one for each of several devices, is asked for.
    """
    _refuse_more("xmp.spawn", nprocs)
    fn(0, *args)


def launch(fn: Callable[..., Any], args: tuple = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Calls ``fn(0, *args)`` in this process: one process with one device.

    Raises:
        NotImplementedError: This process has several devices, or a launcher has started several processes.
    """
    _refuse_more("torch_xla.launch", 1 if debug_single_process else None)
    fn(0, *args)


def _refuse_more(caller: str, processes: int | None) -> None:
    world = int(os.environ.get("WORLD_SIZE") or 1)
    if world > 1:
        what = f"WORLD_SIZE={world} says that a launcher started {world} processes"
    elif processes is None and device_count() > 1:
        what = f"it would start a process for each of {device_count()} devices"
    elif processes is not None and processes > 1:
        what = f"nprocs={processes}"
    else:
        return
    raise NotImplementedError(
        f"{caller}: {what}, and surestep runs one process with one device so far. "
        f"Pass nprocs=1 (torch_xla.launch: debug_single_process=True), and start the script once, without torchrun."
    )


class MpModelWrapper:
    """Holds a model made before ``spawn``; ``to`` moves it."""

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """The model, on the device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function once a process, one process after the other: here, once."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """``fn()``"""
        return fn()
