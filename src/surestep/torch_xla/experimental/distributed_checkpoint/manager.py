"""Checkpoints by the number of the step: when one is due, how many are kept, which are whole."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from fsspec.core import url_to_fs

from surestep import _compat
from surestep.loop.boundaries import sync
from surestep.torch_xla.experimental.distributed_checkpoint._helpers import _sharded_cpu_state_dict
from surestep.torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner

__all__ = ["CheckpointManager"]

WHOLE = ".manager_metadata"  # written when all else is


class CheckpointManager:
    """Saves every so many steps, in a directory a step, and restores.

    Call ``save`` or ``save_async`` at each step. With several processes each of them does, with a process group of torch.distributed.

    Args:
        path: Where the checkpoints are: a directory, or a URL that fsspec knows.
        save_interval: Of so many steps one is saved: those that it divides.
        max_to_keep: When there are more, the oldest goes; 0 keeps all.
        max_pending_async: So many saves may be under way before ``save_async`` waits.
        num_of_threads: That write files.
        process_group: Of the processes that save together; all of them where none is given. One process needs none.
        chkpt_on_preemption: After SIGTERM, which is what announces that a machine goes away, the next step is saved too.

    Raises:
        ValueError: For a number that makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int = 0,
        max_pending_async: int = 1,
        num_of_threads: int = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ):
        for name, number, least in (
            ("save_interval", save_interval, 1),
            ("max_to_keep", max_to_keep, 0),
            ("max_pending_async", max_pending_async, 1),
            ("num_of_threads", num_of_threads, 1),
        ):
            if number < least:
                raise ValueError(f"CheckpointManager: {name} is {number}, expected at least {least}")
        self.base_path = os.path.join(os.fspath(path), "")
        self.save_interval = save_interval
        self.max_to_keep = max_to_keep
        self.num_of_threads = num_of_threads
        self.chkpt_on_preemption = chkpt_on_preemption
        self.pg: Any = process_group or (dist.new_group(backend="gloo") if dist.is_initialized() else None)
        if self.pg is None:  # one process is meant, which PyTorch would say at each save
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)
        self._files, self._root = url_to_fs(self.base_path)
        self._saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="surestep checkpoint")
        self._room = threading.Semaphore(max_pending_async)
        self._pending: list[Future[None]] = []
        self._saving = threading.Lock()
        self._preempted = False
        self._files.makedirs(self._root, exist_ok=True)
        self._tracked = dict(sorted(self._whole(), key=lambda entry: entry[1]))  # steps, by when they were saved
        if chkpt_on_preemption:
            self._listen()

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("CheckpointManager: only the main thread can hear of SIGTERM. Make it there, or chkpt_on_preemption=False")
        before = signal.getsignal(signal.SIGTERM)

        def heard(number: int, frame: Any) -> None:
            self._preempted = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, heard)

    def _whole(self) -> Iterator[tuple[int, str]]:
        """The steps whose checkpoints were written to the end."""
        for path in self._files.ls(self._root, detail=False):
            try:
                noted = json.loads(self._files.cat_file(os.path.join(path, WHOLE)))
            except FileNotFoundError:
                warnings.warn(f"CheckpointManager: {path} is no whole checkpoint, and is left alone", stacklevel=4)
            else:
                yield noted["step"], noted["time"]

    def _path(self, step: int) -> str:
        return os.path.join(self._root, str(step))

    def _first(self) -> bool:
        return self.pg is None or dist.get_rank(self.pg) == 0

    def should_save(self, step: int) -> bool:
        """Whether a checkpoint is due at this step."""
        return step % self.save_interval == 0 or (self.chkpt_on_preemption and self.reached_preemption(step))

    def reached_preemption(self, step: int) -> bool:
        """Whether one of the processes has been told to end."""
        if not self.chkpt_on_preemption:
            raise RuntimeError("CheckpointManager: made with chkpt_on_preemption=False, so nothing is known of it")
        if self.pg is None:
            return self._preempted
        told = torch.tensor(int(self._preempted))
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self.pg)
        return bool(told)

    def save(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """Saves if it is due, or by force; returns whether it did. When it returns, all is written."""
        if not (force or self.should_save(step)):
            return False
        sync()
        self._save(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool = False) -> bool:
        """As ``save``, but returns as soon as there are copies on the host, and writes on another thread.

        Raises:
            Exception: What an earlier save has raised there.
        """
        if not (force or self.should_save(step)):
            return False
        self._raise_failed()
        sync()
        copies = _sharded_cpu_state_dict(state_dict)
        self._room.acquire()
        future = self._saver.submit(self._save, step, copies)
        future.add_done_callback(lambda _: self._room.release())
        self._pending.append(future)
        return True

    def _raise_failed(self) -> None:
        done = [future for future in self._pending if future.done()]
        self._pending = [future for future in self._pending if not future.done()]
        for future in done:
            future.result()

    def join(self) -> None:
        """Waits for what is being saved. Raises what a save has raised."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def _save(self, step: int, state_dict: Any) -> None:
        with self._saving:
            path = self._path(step)
            if self._first():
                self._remove(path)
            self._meet()
            self._tracked.pop(step, None)
            dist_cp.save(
                state_dict,
                storage_writer=_compat.checkpoint_writer(self._url(step), self.num_of_threads),
                planner=SPMDSavePlanner(),
                process_group=self.pg,
                no_dist=self.pg is None,
            )
            now = datetime.datetime.now(datetime.UTC).isoformat()
            self._tracked[step] = now
            if self._first():
                self._files.pipe_file(os.path.join(path, WHOLE), json.dumps({"step": step, "time": now}).encode())
            while self.max_to_keep and len(self._tracked) > self.max_to_keep:
                oldest = next(iter(self._tracked))
                del self._tracked[oldest]
                if self._first():
                    self._remove(self._path(oldest))

    def _meet(self) -> None:
        if self.pg is not None:
            dist.barrier(self.pg)

    def _url(self, step: int) -> str:
        return os.path.join(self.base_path, str(step))

    def _remove(self, path: str) -> None:
        """What says that it is whole goes first."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(os.path.join(path, WHOLE))
        if self._files.exists(path):
            self._files.rm(path, recursive=True)

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Reads a checkpoint into the tensors of a state, in place; what isn't a tensor is replaced in the dictionary.

        An optimizer needs its state first: ``prime_optimizer``. ``ValueError`` for a step that there is no whole checkpoint of.
        """
        if step not in self._tracked:
            raise ValueError(f"CheckpointManager: there is no whole checkpoint of step {step}, but of {self.all_steps()}")
        reader = _compat.checkpoint_reader(self._url(step))
        dist_cp.load(state_dict, storage_reader=reader, planner=SPMDLoadPlanner(), process_group=self.pg, no_dist=self.pg is None)

    def all_steps(self) -> list[int]:
        """The steps of which there are whole checkpoints."""
        return sorted(self._tracked)
