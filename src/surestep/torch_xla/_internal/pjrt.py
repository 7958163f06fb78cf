"""torch_xla._internal.pjrt: functions run in one process a device, with what they return."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

from surestep.execute.world import replica
from surestep.parallel import launcher
from surestep.torch_xla import _later

__all__ = ["run_multiprocess", "spawn"]


def run_multiprocess(fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, Any]:
    """Calls ``fn(*args, **kwargs)`` in one process for each device; gives what each returned, which must be picklable, by ordinal.

    Raises:
        ProcessFailed: One has failed; the others were ended.
        RuntimeError: The device was used already in this process, which is to start others.
    """
    with tempfile.TemporaryDirectory() as directory:
        launcher.spawn(_kept, (fn, args, kwargs, directory), start_method=start_method)
        results = {}
        for name in sorted(os.listdir(directory), key=int):
            with open(os.path.join(directory, name), "rb") as file:
                results[int(name)] = pickle.load(file)
    return results


def _kept(index: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], directory: str) -> None:
    result = fn(*args, **kwargs)
    with open(os.path.join(directory, str(replica().rank)), "wb") as file:
        pickle.dump(result, file)


def spawn(fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple[Any, ...] = ()) -> None:
    """``fn(ordinal, *args)`` in one process for each device."""
    launcher.spawn(fn, args, nprocs, start_method=start_method)


__getattr__ = _later.getter("torch_xla._internal.pjrt")
