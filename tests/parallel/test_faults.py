"""A process that fails, or does something else than the others, ends all of them, soon, and says why once."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from parallel import jobs
from parallel.processes import ranks, start
from surestep.parallel.launcher import Processes, ProcessFailed


def fails(how, directory):
    """The message, and how long it took from the start of the function to the end of all processes."""
    with pytest.raises(ProcessFailed) as raised:
        start(jobs.fail, (how, str(directory)))
    begun = max((directory / f"{rank}.pid").stat().st_mtime for rank in range(2))
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((directory / f"{rank}.pid").read_text()), 0)
    return str(raised.value), time.time() - begun


def test_an_exception(tmp_path):
    message, seconds = fails("exception", tmp_path)
    assert message.startswith("rank 1 has failed") and message.count("Traceback") == 1
    assert "a fault of rank 1" in message and "jobs.py" in message
    assert seconds < 25  # JAX's start and three programs are in it


def test_a_kill(tmp_path):
    message, _ = fails("kill", tmp_path)
    assert message.startswith("rank 1 was ended by SIGKILL")


def test_a_kill_in_the_middle_of_a_step(tmp_path):
    """The others wait inside of XLA for what never comes."""
    message, seconds = fails("kill inside", tmp_path)
    assert message.startswith(("rank 1 was ended by SIGKILL", "rank 0 has failed", "rank 0 was ended by"))
    assert seconds < 30


LAUNCHES = """
import gc, multiprocessing, os, threading
from surestep.torch_xla.distributed import xla_multiprocessing as xmp

def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(multiprocessing.active_children())

xmp.spawn(print, nprocs=2, start_method="fork")
before = held()
for _ in range(50):
    xmp.spawn(print, nprocs=2, start_method="fork")
assert held() == before, (before, held())
"""


def test_launches_in_a_row_leave_nothing():
    done = subprocess.run([sys.executable, "-c", LAUNCHES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted("".join(done.stdout.split())) == ["0"] * 51 + ["1"] * 51  # two may write at once


def test_waiting_says_whether_all_have_ended():
    """As torch.multiprocessing's context: libraries wait in a loop."""
    processes = Processes(jobs.rest, (1.0,), 2, False, "spawn")
    assert len(set(processes.pids())) == 2
    assert processes.join(timeout=0.01) is False
    assert processes.join() is True and processes.join() is True


def test_an_exit(tmp_path):
    message, _ = fails("exit", tmp_path)
    assert message.startswith("rank 1 ended with exit code 3")


def test_a_step_less(tmp_path):
    message, _ = fails("short", tmp_path)
    assert "rank 1 has ended after 3 collective(s), and rank 0 goes on to another one: all_reduce sum of float32[4] at" in message or (
        "rank 0 ended with exit code 1" in message  # it was inside of XLA, and said so itself
    )


def test_a_replayed_step_less(tmp_path, capfd):
    with pytest.raises(ProcessFailed) as raised:
        ranks(jobs.compiled_short, directory=tmp_path)
    said = str(raised.value) + capfd.readouterr().err
    assert (
        "rank 1 has ended after 10 collective(s), and rank 0 goes on to another one: all_reduce sum of float32[16, 6]" in said
        and "jobs.py:" in said
    )


@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        ("operation", "all_reduce max of float32[4]"),
        ("shape", "all_reduce sum of float32[5]"),
        ("dtype", "all_reduce sum of float64[4]"),
        ("rendezvous", "rendezvous 'alone'"),
    ],
)
def test_another_collective(tmp_path, capfd, how, theirs):
    message, _ = fails(how, tmp_path)
    said = message + capfd.readouterr().err
    assert "The first difference is collective 4 of this run: " in said
    assert "rank 0: all_reduce sum of float32[4] at " in said and f"rank 1: {theirs} at " in said and "jobs.py:" in said


def test_interrupt_and_port(tmp_path):
    """Ctrl-C to the parent ends all; a port in use is no obstacle."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time, os, surestep, torch\n"
        "def work(index):\n"
        "    torch.ones(1, device='xla').tolist()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(100)\n"
        "if __name__ == '__main__':\n"
        "    surestep.launch(work)\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ = {**os.environ, "CPU_NUM_DEVICES": "2", "MASTER_PORT": str(taken.getsockname()[1])}
        with subprocess.Popen([sys.executable, script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
            pids = []
            while len(pids) < 2:
                line = parent.stdout.readline()
                pids += [int(word) for word in line.split() if word.isdigit() and int(word) > 10]
            parent.send_signal(signal.SIGINT)
            parent.wait(10)
            assert parent.returncode != 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
