"""Threads, processes and autograd's own threads."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from surestep.tensor.xla_tensor import XlaTensor


def in_threads(work, count=4):
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_threads_record_at_the_same_time_each_its_own_values():
    results = {}

    def work(number):
        weight = torch.full((3,), float(number), device="xla", requires_grad=True)
        for _ in range(20):
            (weight * weight).sum().backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.25)
                weight.grad = None
        results[number] = weight.detach().cpu()

    in_threads(work)
    for number, value in results.items():
        torch.testing.assert_close(value, torch.full((3,), number * 0.5**20), rtol=1e-5, atol=1e-12)


def test_backward_in_a_thread_that_records_nothing_else():
    loss = (torch.ones(3, device="xla", requires_grad=True) * 2).sum()
    out, gradient = torch.ones(3, device="xla", requires_grad=True) * 2, torch.ones(3, device="xla")
    in_threads(lambda number: loss.backward(), 1)
    in_threads(lambda number: out.backward(gradient), 1)


@pytest.mark.parametrize("order", ["first backward, then surestep", "surestep, then first backward"])
def test_two_devices_backward_included_whatever_came_first(order):
    first = "(torch.ones(2, requires_grad=True) * 2).sum().backward()"
    lines = ["import torch", first, "import surestep"] if order.startswith("first") else ["import torch, surestep", first]
    lines += [
        "x = torch.ones(3, device='xla:1', requires_grad=True)",
        "(x * 3).sum().backward()",
        "assert x.grad.tolist() == [3, 3, 3] and x.grad.device == torch.device('xla:1')",
        "y = x.detach().to('xla:0') + 1",
        "assert y.tolist() == [2, 2, 2] and torch.xla.device_count() == 2",
        "try: x + y",
        "except RuntimeError as error: assert 'xla:1 and xla:0' in str(error)",
        "else: raise AssertionError",
        "print('ok')",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env={**__import__("os").environ, "CPU_NUM_DEVICES": "2"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_backward_on_the_second_device_where_a_thread_began_in_inference_mode():
    """The mode's end puts back what was set for the thread inside of it."""
    script = (
        "import torch, surestep\n"
        "with torch.inference_mode(): torch.ones(2, device='xla') + 1\n"
        "x = torch.ones(3, device='xla:1', requires_grad=True)\n"
        "print(torch.autograd.grad((x * 3).sum(), x)[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "CPU_NUM_DEVICES": "2"}, capture_output=True, text=True)
    assert done.stdout.strip() == "[3.0, 3.0, 3.0]", done.stderr


FORKED = """
import os, torch, surestep, warnings
warnings.simplefilter("ignore")
x = {started}
pid = os.fork()
if pid == 0:
    try:
        {used}
    except RuntimeError as error:
        os._exit(0 if "forked process" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print((torch.ones(2, device="xla") + 1).tolist())
"""


@pytest.mark.parametrize(
    ("started", "used"),
    [
        ('torch.ones(2, device="xla").mul_(1)', "x + 1"),
        ('torch.ones(2, device="xla").tolist()', 'torch.ones(2, device="xla").tolist()'),
        ("surestep.real_devices()", 'torch.ones(2, device="xla").tolist()'),
        ("surestep.real_devices()", "torch.xla.device_count()"),
    ],
)
def test_a_forked_child_is_told_not_to_use_the_device(started, used):
    """However JAX was started in the parent, and however the child comes to it."""
    done = subprocess.run([sys.executable, "-c", FORKED.format(started=started, used=used)], capture_output=True, text=True)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


def test_dataloader_workers_forked_after_jax_has_started():
    torch.ones(1, device="xla").tolist()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    assert [batch.to("xla").sum().item() for (batch,) in loader] == [1, 5, 9, 13]


def test_dispatch_modes_see_the_operations():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        result = torch.ones(2, 3, device="xla") @ torch.ones(3, 4, device="xla")
    assert counter.get_total_flops() == 48 and isinstance(result, XlaTensor)
