"""Ctrl-C at any moment: the process lives, every tensor is readable, and training goes on as if it hadn't been."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from surestep.execute.interrupts import Held, apart, start


def test_an_interrupt_while_a_program_runs_loses_nothing(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import torch, surestep, signal\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "m = torch.nn.Sequential(*[torch.nn.Linear(768, 768) for _ in range(4)]).to('xla')\n"
        "o = torch.optim.SGD(m.parameters(), 1e-5); x = torch.ones(256, 768).to('xla')\n"
        "def step():\n"
        "    with surestep.step(): o.zero_grad(); m(x).square().mean().backward(); o.step()\n"
        "for _ in range(4): step()\n"
        "for k in range(3):\n"
        "    signal.setitimer(signal.ITIMER_REAL, .15 + k * .0137)\n"
        "    try:\n"
        "        while True: step()\n"
        "    except KeyboardInterrupt: assert m[0].weight.isfinite().all().item()\n"
        "print('ok')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stderr[-3000:]


def test_held_signals_arrive_at_the_end_of_the_block():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with Held():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)
            assert seen == []
        assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is not before
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_of_two_held_signals_the_second_is_not_lost_to_the_firsts_exception():
    arrived = []

    def raising(number, frame):
        raise InterruptedError(number)

    before = signal.signal(signal.SIGUSR1, raising), signal.signal(signal.SIGUSR2, lambda number, frame: arrived.append(number))
    try:
        for _ in range(2):  # the handlers are still in place the second time
            arrived.clear()
            with pytest.raises(InterruptedError), Held():
                os.kill(os.getpid(), signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGUSR2)
                time.sleep(0.01)
                assert arrived == []
            time.sleep(0.01)
            assert arrived == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])


STORM = """
import os, signal, time, torch, surestep

armed = over = False

def interrupt(number, frame):  # one exception for each time that the loop is ready for it
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def end(number, frame):
    global over
    over = True

signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGUSR1, end)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)]).to("xla")
optimizer, x = torch.optim.SGD(model.parameters(), 1e-3), torch.ones(8, 32).to("xla")

def step():
    with surestep.step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

for _ in range(4):
    step()
process = os.getpid()
if os.fork() == 0:
    for _ in range(600):
        time.sleep(0.004)
        os.kill(process, signal.SIGINT)
    os.kill(process, signal.SIGUSR1)
    os._exit(0)
caught = 0
while not over:
    try:
        torch.set_grad_enabled(True)  # PyTorch's own optimizers can leave it off when they are interrupted
        armed = True
        while not over:
            step()
    except KeyboardInterrupt:
        caught += 1
armed = False
assert caught > 50 and model[0].weight.isfinite().all().item()
print("ok")
"""


def test_a_storm_of_interrupts_ends_no_process():
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]


def test_work_apart_gives_its_result_and_raises_its_exception():
    assert apart(threading.current_thread).name.startswith("surestep compiler")
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0)
    assert start(lambda: 5).result() == 5


def test_the_device_is_used_by_an_atexit_handler():
    code = """
import atexit, torch, surestep
x = torch.ones(3, device="xla")
atexit.register(lambda: print((x * 2).tolist(), (x + 1).sum().item()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[2.0, 2.0, 2.0] 6.0\n", "")
