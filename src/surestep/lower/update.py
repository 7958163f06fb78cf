"""The update that an optimizer of ``torch.optim`` makes, for all parameters of a group at once.

Each rule is written for one parameter: ``rule(flags, numbers, step, param, grad, *state)`` gives the new parameter and the new state. The
formulas are those of the optimizer's documentation, in the order of operations of PyTorch's implementation for single tensors, which
CPU eager takes. Numbers (learning rate, betas, ...) are 0-d float64 arrays, and what PyTorch computes from them in Python is computed here
in float64 too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def _rounding(dtype: np.dtype) -> Callable[[Any], Any]:
    """Brings Python's float64 numbers to the dtype of the tensors that they meet."""
    return lambda number: jnp.asarray(number).astype(dtype)


def _descent(flags: dict[str, bool], param: Any, grad: Any, weight_decay: Any, n: Callable[[Any], Any]) -> Any:
    """The gradient to go down: negated to maximize, with L2 regularization."""
    grad = -grad if flags["maximize"] else grad
    return grad + n(weight_decay) * param if flags["weight_decay"] else grad


def _lerp(start: Any, end: Any, weight: Any, n: Callable[[Any], Any]) -> Any:
    """``torch.lerp``, which goes from the nearer end."""
    weight = n(weight)
    return jnp.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


def _decayed(flags: dict[str, bool], param: Any, grad: Any, lr: Any, weight_decay: Any, n: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Parameter and gradient after weight decay, which is decoupled (AdamW) or L2."""
    grad = -grad if flags["maximize"] else grad
    if not flags["weight_decay"]:
        return param, grad
    if flags["decoupled_weight_decay"]:
        return param * n(1 - lr * weight_decay), grad
    return param, grad + n(weight_decay) * param


def sgd(flags, numbers, step, param, grad, buffer=None):
    lr, momentum, dampening, weight_decay = numbers
    n = _rounding(param.dtype)
    grad = _descent(flags, param, grad, weight_decay, n)
    if buffer is None:
        return (param + n(-lr) * grad,)
    buffer = buffer * n(momentum) + n(1 - dampening) * grad
    grad = grad + n(momentum) * buffer if flags["nesterov"] else buffer
    return param + n(-lr) * grad, buffer


def adam(flags, numbers, step, param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq=None):
    lr, beta1, beta2, weight_decay, eps = numbers
    n = _rounding(param.dtype)
    param, grad = _decayed(flags, param, grad, lr, weight_decay, n)
    exp_avg = _lerp(exp_avg, grad, 1 - beta1, n)
    exp_avg_sq = exp_avg_sq * n(beta2) + n(1 - beta2) * grad * grad
    step_size = lr / (1 - beta1**step)
    largest = exp_avg_sq if max_exp_avg_sq is None else jnp.maximum(max_exp_avg_sq, exp_avg_sq)
    denominator = jnp.sqrt(largest) / n(jnp.sqrt(1 - beta2**step)) + n(eps)
    param = param + n(-step_size) * exp_avg / denominator
    return (param, exp_avg, exp_avg_sq) if max_exp_avg_sq is None else (param, exp_avg, exp_avg_sq, largest)


def rmsprop(flags, numbers, step, param, grad, square_avg, *state):
    lr, alpha, eps, weight_decay, momentum = numbers
    n = _rounding(param.dtype)
    grad = _descent(flags, param, grad, weight_decay, n)
    square_avg = square_avg * n(alpha) + n(1 - alpha) * grad * grad
    new, rest = [square_avg], list(state)
    average = square_avg
    if flags["centered"]:
        grad_avg = _lerp(rest.pop(0), grad, 1 - alpha, n)
        average = square_avg - grad_avg * grad_avg
        new.append(grad_avg)
    average = jnp.sqrt(average) + n(eps)
    if not flags["momentum"]:
        return param + n(-lr) * grad / average, *new
    buffer = rest.pop(0) * n(momentum) + grad / average
    return param + n(-lr) * buffer, *new, buffer


def adagrad(flags, numbers, step, param, grad, state_sum):
    lr, lr_decay, weight_decay, eps = numbers
    n = _rounding(param.dtype)
    grad = _descent(flags, param, grad, weight_decay, n)
    state_sum = state_sum + grad * grad
    return param + n(-lr / (1 + (step - 1) * lr_decay)) * grad / (jnp.sqrt(state_sum) + n(eps)), state_sum


def adadelta(flags, numbers, step, param, grad, square_avg, acc_delta):
    lr, rho, eps, weight_decay = numbers
    n = _rounding(param.dtype)
    grad = _descent(flags, param, grad, weight_decay, n)
    square_avg = square_avg * n(rho) + n(1 - rho) * grad * grad
    delta = jnp.sqrt(acc_delta + n(eps)) / jnp.sqrt(square_avg + n(eps)) * grad
    acc_delta = acc_delta * n(rho) + n(1 - rho) * delta * delta
    return param + n(-lr) * delta, square_avg, acc_delta


def adamax(flags, numbers, step, param, grad, exp_avg, exp_inf):
    lr, beta1, beta2, eps, weight_decay = numbers
    n = _rounding(param.dtype)
    grad = _descent(flags, param, grad, weight_decay, n)
    exp_avg = _lerp(exp_avg, grad, 1 - beta1, n)
    exp_inf = jnp.maximum(exp_inf * n(beta2), jnp.abs(grad) + n(eps))
    return param + n(-lr / (1 - beta1**step)) * exp_avg / exp_inf, exp_avg, exp_inf


def radam(flags, numbers, step, param, grad, exp_avg, exp_avg_sq):
    lr, beta1, beta2, weight_decay, eps = numbers
    n = _rounding(param.dtype)
    param, grad = _decayed(flags, param, grad, lr, weight_decay, n)
    exp_avg = _lerp(exp_avg, grad, 1 - beta1, n)
    exp_avg_sq = exp_avg_sq * n(beta2) + n(1 - beta2) * grad * grad
    correction2 = 1 - beta2**step
    corrected = exp_avg / n(1 - beta1**step)
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / correction2
    rectified = jnp.where(length > 5, length, 6)  # the root of what is not used must not be of a negative number
    rect = jnp.sqrt((rectified - 4) * (rectified - 2) * longest / ((longest - 4) * (longest - 2) * rectified))
    adaptive = n(jnp.sqrt(correction2)) / (jnp.sqrt(exp_avg_sq) + n(eps))
    update = corrected * n(lr)
    return param - jnp.where(length > 5, update * adaptive * n(rect), update), exp_avg, exp_avg_sq


RULES = {
    "sgd": sgd,
    "adam": adam,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "adadelta": adadelta,
    "adamax": adamax,
    "radam": radam,
}


def _update(name: str) -> Any:
    rule = RULES[name]

    def update(outs, flags, numbers, steps, params, grads, *states):
        """``flags`` are the names of those that are set; ``steps`` are one 1-d array for all parameters, a 0-d array each, or none."""
        known = _Flags(flags)
        packed = len(steps) == 1 and steps[0].ndim == 1
        new_steps = [step + 1 for step in steps]
        written: list[list[Any]] = [[] for _ in range(1 + len(states))]
        for position, (param, grad, *state) in enumerate(zip(params, grads, *states, strict=True)):
            step = None if not steps else new_steps[0][position] if packed else new_steps[position]
            wide = opmath(param.dtype)
            given = [value.astype(wide) for value in (param, grad, *state)]
            new = rule(known, numbers, None if step is None else step.astype(np.float64), *given)
            for column, value, old in zip(written, new, (param, *state), strict=True):
                column.append(value.astype(old.dtype))
        return [*new_steps, *(value for column in written for value in column)]

    return update


class _Flags(dict):
    """``flags["maximize"]``: whether it is set."""

    def __init__(self, names: list[str]):
        super().__init__(dict.fromkeys(names, True))

    def __missing__(self, name: str) -> bool:
        return False


TABLE = {f"update::{name}": lowering(_update(name)) for name in RULES}
