"""The same steps written by hand in JAX: one jitted function, parameters and state donated. The practical limit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from models import Workload


def _linear(p: dict, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _mlp(p: dict, buffers: dict, x: Any) -> tuple[Any, dict]:
    layers = sorted({int(name.partition(".")[0]) for name in p})
    for layer in layers:
        x = _linear(p, str(layer), x)
        x = x if layer == layers[-1] else jax.nn.relu(x)
    return x, buffers


def _convolution(p: dict, name: str, x: Any, stride: int, padding: int) -> Any:
    return lax.conv_general_dilated(
        x, p[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW")
    )


def _resnet(p: dict, buffers: dict, x: Any) -> tuple[Any, dict]:
    new = dict(buffers)

    def norm(name: str, x: Any) -> Any:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = x.size / mean.size
        for key, value in (("mean", mean), ("var", var * count / (count - 1))):
            new[f"{name}.running_{key}"] = 0.9 * buffers[f"{name}.running_{key}"] + 0.1 * lax.stop_gradient(value)
        scale = p[f"{name}.weight"] * lax.rsqrt(var + 1e-5)
        return (x - mean[:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]

    x = jax.nn.relu(norm("bn", _convolution(p, "stem", x, 1, 1)))
    for block in range(8):
        name, stride = f"blocks.{block}", 2 if block in (2, 4, 6) else 1
        y = jax.nn.relu(norm(f"{name}.bn1", _convolution(p, f"{name}.conv1", x, stride, 1)))
        y = norm(f"{name}.bn2", _convolution(p, f"{name}.conv2", y, 1, 1))
        if f"{name}.down.0.weight" in p:
            x = norm(f"{name}.down.1", _convolution(p, f"{name}.down.0", x, stride, 0))
        x = jax.nn.relu(x + y)
    return _linear(p, "fc", x.mean((2, 3))), new


def _gpt(p: dict, buffers: dict, ids: Any, heads: int = 4) -> tuple[Any, dict]:
    def norm(name: str, x: Any) -> Any:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["tok.weight"][ids] + p["pos.weight"]
    b, t, d = x.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for layer in range(4):
        name = f"layers.{layer}"
        q, k, v = _linear(p, f"{name}.qkv", norm(f"{name}.ln1", x)).reshape(b, t, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) * (d // heads) ** -0.5
        a = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1) @ v
        x = x + _linear(p, f"{name}.proj", a.transpose(0, 2, 1, 3).reshape(b, t, d))
        x = x + _linear(p, f"{name}.fc2", jax.nn.gelu(_linear(p, f"{name}.fc1", norm(f"{name}.ln2", x)), approximate=False))
    return _linear(p, "head", norm("ln", x)).reshape(b * t, -1), buffers


def _loss(kind: str, out: Any, y: Any) -> Any:
    if kind == "mse":
        return jnp.mean((out - y) ** 2)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], 1))


def first_state(workload: Workload, p: dict) -> Any:
    """The optimizer's state before the first step."""
    zeros = {name: jnp.zeros_like(value) for name, value in p.items()}
    if workload.optimizer == "adamw":
        return {"m": zeros, "v": {name: jnp.zeros_like(value) for name, value in p.items()}, "t": jnp.zeros((), jnp.int32)}
    return zeros if workload.optimizer == "momentum" else {}


def _update(workload: Workload, p: dict, g: dict, s: Any) -> tuple[dict, Any]:
    lr = workload.lr
    if workload.optimizer == "sgd":
        return jax.tree.map(lambda p, g: p - lr * g, p, g), s
    if workload.optimizer == "momentum":
        s = jax.tree.map(lambda m, g: 0.9 * m + g, s, g)
        return jax.tree.map(lambda p, m: p - lr * m, p, s), s
    t = s["t"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, s["m"], g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, s["v"], g)
    one, two = 1 - 0.9**t, jnp.sqrt(1 - 0.999**t)
    p = jax.tree.map(lambda p, m, v: p * (1 - lr * 0.01) - lr / one * m / (jnp.sqrt(v) / two + 1e-8), p, m, v)
    return p, {"m": m, "v": v, "t": t}


def make(name: str, workload: Workload) -> Any:
    """``step(parameters, buffers, state, x, y) -> (loss, parameters, buffers, state)``, jitted."""
    forward = _gpt if name == "gpt-small" else _resnet if name == "cnn" else _mlp

    def step(p: dict, buffers: dict, s: Any, x: Any, y: Any) -> Any:
        def f(p: dict) -> Any:
            out, new = forward(p, buffers, x)
            return _loss(workload.loss, out, y), new

        (loss, new), g = jax.value_and_grad(f, has_aux=True)(p)
        p, s = _update(workload, p, g, s)
        return loss, p, new, s

    return jax.jit(step, donate_argnums=(0, 1, 2))
