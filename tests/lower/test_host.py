"""PyTorch's CPU kernels within programs: the same numbers as CPU eager's, and used where they may be only."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from surestep.execute import host_kernels
from surestep.lower import host, host_convolution
from surestep.lower.convolution import Convolution

aten = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def prepared():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    host_kernels.prepare()
    yield
    torch.set_num_threads(before)


@st.composite
def convolutions(draw):
    """The sizes of x and weight, and aten.convolution's options."""
    n = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(n))

    inputs, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    kernel, stride, padding, dilation = each(1, 3), each(1, 3), each(0, 2), each(1, 2)
    transposed = draw(st.booleans())
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True))
    sizes = tuple(2 * p + d * (k - 1) + 1 + draw(st.integers(0, 4)) for p, d, k in zip(padding, dilation, kernel, strict=True))
    weight = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    return (draw(st.integers(1, 3)), inputs, *sizes), (*weight, *kernel), Convolution(stride, padding, dilation, transposed, extra, groups)


@given(convolutions(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([(True, True), (True, False), (False, True)]))
@settings(max_examples=30, deadline=None)
def test_convolutions(case, dtype, mask):
    x_size, weight_size, options = case
    x, weight = torch.randn(x_size, dtype=dtype), torch.randn(weight_size, dtype=dtype)
    expected = aten.convolution(x, weight, None, *options)
    grad = torch.randn_like(expected)
    gradients = aten.convolution_backward(grad, x, weight, None, *options, [*mask, False])

    def form(grad, x, weight):
        zeros = [jnp.zeros_like(x), jnp.zeros_like(weight)]
        return [zero for zero, wanted in zip(zeros, mask, strict=True) if wanted]

    def both(grad, x, weight):
        result = host.call(host_convolution.convolution, options, lambda x, weight: [jnp.zeros(expected.shape, x.dtype)], x, weight)
        return [*result, *host.call(host_convolution.convolution_backward, (mask, *options), form, grad, x, weight)]

    with jax.enable_x64(True):
        found = jax.jit(both)(*(one.numpy() for one in (grad, x, weight)))
    for one, other in zip(found, [expected, *(g for g in gradients if g is not None)], strict=True):
        torch.testing.assert_close(torch.from_numpy(np.asarray(one).copy()), other)


def trained(model, x, device):
    """Losses of a few steps, and the last program as text."""
    torch.manual_seed(0)
    model, x = model.to(device), x.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 3, 2))


def programs(monkeypatch):
    """What is compiled from now on, as text."""
    found = []
    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, *a, **k: found.append(self.as_text()) or compiled(self, *a, **k))
    return found


@pytest.mark.parametrize("on", [True, False])
def test_a_network(monkeypatch, on):
    monkeypatch.setenv("SURESTEP_HOST_KERNELS", "01"[on])
    texts = programs(monkeypatch)
    x = torch.randn(8 if on else 9, 16, 32, 32)  # other sizes, or the program is there already
    assert trained(network(), x, "xla") == pytest.approx(trained(network(), x, "cpu"), rel=1e-4)
    assert any(host_kernels.TARGET in text for text in texts) == on


def test_a_small_one_is_xlas(monkeypatch):
    texts = programs(monkeypatch)
    trained(network(), torch.randn(1, 16, 6, 6), "xla")
    assert texts and not any(host_kernels.TARGET in text for text in texts)


def double(x):
    return host.call(host_convolution.convolution, OPTIONS, lambda x, w: [OPTIONS(x, w)], x, jnp.ones((3, 3, 3)))[0]


OPTIONS = Convolution((1,), (1,), (1,), False, (0,), 1)


def test_mapped():
    x = np.random.default_rng(0).normal(size=(4, 2, 3, 8)).astype("f")
    mapped = jax.jit(jax.vmap(double))
    np.testing.assert_allclose(mapped(x), np.stack([double(one) for one in x]), rtol=1e-5, atol=1e-6)
    assert host_kernels.TARGET not in mapped.lower(x).as_text()


def test_in_a_loop():
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("f")
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: jnp.tanh(double(x)), x))
    expected = x
    for _ in range(5):
        expected = np.tanh(np.asarray(double(expected)))
    np.testing.assert_allclose(looped(x), expected, rtol=1e-4, atol=1e-5)
    assert host_kernels.TARGET in looped.lower(x).as_text()


SPLIT = """
import jax, numpy as np, torch
import surestep, surestep.torch_xla.distributed.spmd as xs
from torch import nn
texts, compiled = [], jax.stages.Lowered.compile
jax.stages.Lowered.compile = lambda self, *a, **k: texts.append(self.as_text()) or compiled(self, *a, **k)
model, x = nn.Conv2d(16, 16, 3), torch.randn(8, 16, 32, 32)
expected = model(x).sum().item()
model, x = model.to("xla"), x.to("xla")
xs.mark_sharding(x, xs.Mesh(np.arange(2), (2,), ("data",)), ("data", None, None, None))
assert abs(model(x).sum().item() - expected) < 1e-2 * abs(expected)
assert len(texts) > 0 and not any("surestep_host_kernel" in text for text in texts)
"""


def test_not_over_several_devices():
    environment = {**os.environ, "XLA_USE_SPMD": "1", "CPU_NUM_DEVICES": "2"}
    done = subprocess.run([sys.executable, "-c", SPLIT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("threads", "kind", "called"), [(1, "2d", True), (2, "2d", False), (2, "3d", True), (2, "transposed", True)])
def test_with_several_threads_only_where_the_difference_is_large(threads, kind, called):
    sizes = {"2d": ((64, 32, 32, 32), (32, 32, 3, 3)), "3d": ((4, 16, 16, 32, 32), (32, 16, 3, 3, 3))}
    x, weight = (np.empty(size, np.float32) for size in sizes.get(kind, sizes["2d"]))
    n = x.ndim - 2
    options = Convolution((1,) * n, (1,) * n, (1,) * n, kind == "transposed", (0,) * n, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert host_convolution.faster(x, weight, x, options, gradients=False) is called
    finally:
        torch.set_num_threads(before)
