"""Starts one process a device on this machine, and ends all of them when one fails: a small ``torchrun``, whose variables it sets.

Under ``torchrun`` itself, which has started the processes already, the function runs in place.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.distributed as dist

from surestep.execute.devices import for_processes, started
from surestep.execute.world import ALONE, is_spmd, world
from surestep.parallel import connection
from surestep.tensor import devices

GRACE = 3.0  # seconds between asking a process to end and ending it


class ProcessFailed(RuntimeError):
    """One of the processes that were launched has failed; the others were ended."""


def launch(fn: Callable[..., Any], args: tuple = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Calls ``fn(index, *args)`` in one process for each device, and waits until all have ended.

    On the CPU there are as many as CPU_NUM_DEVICES says, 1 if it isn't set. One process is this one; so it is, whatever there is, with
    ``debug_single_process``, and under SPMD. Under ``torchrun`` the function runs in place, with the local rank.

    Raises:
        ProcessFailed: One has failed; the message has its rank and its traceback. The others were ended.
        RuntimeError: The device was used already in this process, which is to start others.
        TypeError: ``fn`` can't be called.
    """
    if not callable(fn):
        raise TypeError(f"launch takes the function that each process calls, and this is {fn!r}")
    if world() != ALONE:
        in_place(fn, args)
    elif debug_single_process:
        fn(0, *args)
    else:
        spawn(fn, args, start_method=start_method)


def spawn(
    fn: Callable[..., Any],
    args: tuple = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Processes | None:
    """As ``launch``, with the number of processes; ``join=False`` returns at once, and gives what to ``join()``."""
    if world() != ALONE:
        in_place(fn, args)
        return None
    count = device_count() if nprocs is None else nprocs
    if count < 1:
        raise ValueError(f"nprocs={count}: there must be at least one process")
    if count == 1 and join:
        fn(0, *args)
        return None
    if devices.started() or (start_method == "fork" and started()):
        raise RuntimeError(
            f"launch: the xla device is in use already in this process, which is to start {count} others. Use it only inside of the "
            f"function that is launched: that is where torch_xla.device(), .to('xla') and the like belong"
        )
    processes = Processes(fn, args, count, daemon, start_method)
    if not join:
        return processes
    processes.join()
    return None


def in_place(fn: Callable[..., Any], args: tuple) -> None:
    """Calls the function as one of the processes that a launcher has started; the others are waited for at the end."""
    try:
        fn(world().local_rank, *args)
    except BaseException as error:
        well = isinstance(error, SystemExit) and not error.code
        connection.leave(None if well else f"{type(error).__name__}: {error}")
        raise
    connection.leave()


def device_count() -> int:
    """How many processes ``launch`` starts: under SPMD one, which has all devices. JAX doesn't start in this one."""
    return 1 if is_spmd() else for_processes()


class Processes:
    """Those that were started."""

    def __init__(self, fn: Callable[..., Any], args: tuple, count: int, daemon: bool, start_method: str):
        context: Any = multiprocessing.get_context(start_method)
        # Port 0: the system finds a free one. The store is kept here, so that it outlives each of the processes.
        self.store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        try:
            for rank in range(count):
                ours, theirs = context.Pipe(duplex=False)
                environ = {
                    "RANK": rank,
                    "WORLD_SIZE": count,
                    "LOCAL_RANK": rank,
                    "LOCAL_WORLD_SIZE": count,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": self.store.port,
                    "TORCHELASTIC_USE_AGENT_STORE": True,
                }
                given = ({name: str(value) for name, value in environ.items()}, os.getpid(), theirs, fn, args)
                process = context.Process(target=_run, args=given, name=f"surestep rank {rank}", daemon=daemon)
                process.start()
                theirs.close()
                self.pipes.append(ours)
                self.processes.append(process)
        except BaseException:
            self._end()
            raise
        self.running = {process.sentinel: rank for rank, process in enumerate(self.processes)}

    def pids(self) -> list[int]:
        """The processes' identities, by rank."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits until all have ended, or for so many seconds; gives whether all have. As ``torch.multiprocessing``'s context does, for
        which libraries write ``while not context.join(): pass``.

        When one fails, ends the others (killed after ``grace_period`` seconds, 3 if None) and raises ``ProcessFailed``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self.running:
                ended = wait(list(self.running), None if deadline is None else max(0.0, deadline - time.monotonic()))
                if not ended:
                    return False
                for sentinel in ended:
                    rank = self.running.pop(sentinel)  # type: ignore[bad-index] (sentinels are what was waited for)
                    self.processes[rank].join()
                    if self.processes[rank].exitcode != 0:
                        raise ProcessFailed(self._failure(rank))
        except BaseException:
            self.running.clear()
            self._end(GRACE if grace_period is None else grace_period)
            raise
        self._end()
        return True

    def _failure(self, rank: int) -> str:
        code = self.processes[rank].exitcode
        pipe = self.pipes[rank]
        try:
            return f"rank {rank} has failed; the others were ended. Its traceback:\n\n{pipe.recv()}"
        except EOFError:
            pass  # it could tell nothing
        if code < 0:
            return f"rank {rank} was ended by {signal.Signals(-code).name}; the others were ended. Was memory short?"
        return f"rank {rank} ended with exit code {code}; the others were ended"

    def _end(self, grace: float = GRACE) -> None:
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + grace
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.pipes:
            pipe.close()


def _run(environ: dict[str, str], parent: int, pipe: Connection, fn: Callable[..., Any], args: tuple) -> None:
    """In the new process."""
    os.environ.update(environ)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no process is left when the parent is killed
        if os.getppid() != parent:
            os._exit(1)
    try:
        in_place(fn, args)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # whatever it is, it is told by the parent
        pipe.send(traceback.format_exc())
        code = 1
    else:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what JAX does at exit would wait for the others, which wait for this one
