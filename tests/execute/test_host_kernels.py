"""PyTorch's CPU kernels called from programs: errors, threads, other processes, the interpreter's end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from surestep.execute import host_kernels
from surestep.lower import host


def called(kernel, *operands, options=()):
    """A program that is one call of a kernel whose result is like its first operand."""
    return jax.jit(lambda *operands: host.call(kernel, options, lambda x, *_: [jnp.zeros_like(x)], *operands)[0])(*operands)


@pytest.fixture(autouse=True)
def forgotten():
    before = dict(host_kernels._kernels)
    host_kernels.prepare()
    yield
    host_kernels._kernels.clear()
    host_kernels._kernels.update(before)


def test_operands_and_options():
    @host_kernels.kernel
    def combined(inputs, outputs, text, numbers):
        assert text == "it's" and numbers == (1, (2.5, True), None)
        assert all(x.is_contiguous() for x in inputs)
        torch.add(inputs[0], inputs[1].to(inputs[0].dtype).sum(), out=outputs[0])

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for dtype in np.float32, np.float16, jnp.bfloat16:
        y = jnp.arange(3, dtype=dtype)
        np.testing.assert_array_equal(called(combined, x, y, options=("it's", (1, (2.5, True), None))), x + 3)


def test_an_error_says_which_operation():
    @host_kernels.kernel
    def failing(inputs, outputs):
        outputs[0].copy_(inputs[0] @ inputs[0])

    x = np.ones((2, 3), np.float32)
    with pytest.raises(Exception, match=r"PyTorch's CPU kernel for failing\(float32\[2, 3\]\) failed: mat1 and mat2 shapes cannot be"):
        called(failing, x).block_until_ready()
    np.testing.assert_array_equal(called(failing, np.ones((2, 2), np.float32)), np.full((2, 2), 2.0))


class Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, operation, kinds, args=(), kwargs=None):
        raise AssertionError(operation)


@pytest.mark.parametrize(
    "around",
    [Refusing, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.device("meta"), torch.no_grad],
    ids=["mode", "inference", "autocast", "default device", "no grad"],
)
def test_what_the_calling_thread_is_in_does_not_count(around):
    @host_kernels.kernel
    def product(inputs, outputs):
        torch.ops.aten.mm.out(inputs[0], inputs[0], out=outputs[0])

    x = np.full((4, 4), 1.001, np.float32)
    expected = x @ x  # bfloat16's would be others
    with around():
        found = called(product, x).block_until_ready()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def run(program, **variables):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


NETWORK = """
import torch, surestep
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Conv3d(16, 16, 3, padding=1) for _ in range(3)]).to("xla")
x = torch.randn(4, 16, 8, 16, 16).to("xla")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
train = surestep.compile(train)
"""


def test_many_steps_behind_each_other():
    """Programs wait for the GIL, which the main thread is busy with, and it for them; at the end as well, with some still to run.

    No thread takes more of PyTorch's threads than are set where the program is started.
    """
    program = """
    from surestep.lower import host_convolution
    from surestep.execute import host_kernels
    counts, before = set(), host_kernels._kernels["convolution"]
    def convolution(*args):
        counts.add(torch.get_num_threads())
        before(*args)
    host_kernels._kernels["convolution"] = convolution
    for threads in 2, 1:
        counts.clear()
        torch.set_num_threads(threads)
        for _ in range(15):
            loss = train(x)
            sum(range(20_000))
        surestep.sync(wait=True)
        print(*counts)
    for _ in range(5):
        train(x)
    """
    assert run(NETWORK + textwrap.dedent(program)) == ["2", "1"]


def test_another_process_finds_the_program(tmp_path):
    """One compiled by another process calls the same kernels, and isn't compiled again."""
    variables = {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    program = NETWORK + "print(*(round(train(x).item(), 6) for _ in range(4)))"
    first = run(program, **variables)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*-cache")}
    assert kept
    assert run(program, **variables) == first
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*-cache")} == kept
