"""Ctrl-C at any moment: the process lives, every tensor is readable, and training goes on as if it hadn't been."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from surestep.execute.interrupts import Held, apart, start

# A signal every few milliseconds, while steps are recorded, compiled and run. What an iteration that was cut short has done is not known, so the weights
# are compared with CPU eager from where the interrupts end.
SCRIPT = """
import copy, os, random, signal, sys, threading, time, torch, surestep
from torch import nn
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3)).to("xla")
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
data = torch.randn(40, 6, 8)

def train(model, optimizer, batch, device):
    optimizer.zero_grad()
    model(batch.to(device)).square().mean().backward()
    optimizer.step()

r, done, interrupts = random.Random(int(sys.argv[1])), False, 0
def interrupt():
    while not done:
        time.sleep(r.uniform(0.002, 0.06))
        os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt, daemon=True)
end, i = time.time() + 6, 0
thread.start()
while time.time() < end:
    try:
        with surestep.step():
            train(model, optimizer, data[i % 40], "xla")
        i += 1
        for p in model.parameters():
            p.detach().cpu()
    except KeyboardInterrupt:
        interrupts += 1
while thread.is_alive():
    try:
        done = True
        thread.join()
    except KeyboardInterrupt:
        pass
assert all(p.detach().isfinite().all().item() for p in model.parameters())
model.eval()
truth = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3)).eval()
truth.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
ours, theirs = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(truth.parameters(), 0.1)
for batch in data[:4]:
    train(model, ours, batch, "xla")
    train(truth, theirs, batch, "cpu")
for a, b in zip(model.parameters(), truth.parameters()):
    torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-9, atol=1e-9)
print("interrupts", interrupts, "steps", i)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_interrupts(seed, tmp_path):
    script = tmp_path / "storm.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-X", "faulthandler", str(script), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[1]) > 20


def test_an_interrupt_while_a_program_runs_loses_nothing(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import torch, surestep, signal\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "m = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).to('xla')\n"
        "o = torch.optim.SGD(m.parameters(), 1e-5); x = torch.ones(128, 256).to('xla')\n"
        "def step():\n"
        "    with surestep.step(): o.zero_grad(); m(x).square().mean().backward(); o.step()\n"
        "for _ in range(4): step()\n"
        "for k in range(8):\n"
        "    signal.setitimer(signal.ITIMER_REAL, .05 + k * .0137)\n"
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


def test_work_apart_gives_its_result_and_raises_its_exception():
    assert apart(threading.current_thread).name.startswith("surestep compiler")
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0)
    assert start(lambda: 5).result() == 5
