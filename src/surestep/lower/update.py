"""The update that an optimizer of ``torch.optim`` makes, for all parameters of a group at once.

Each rule is written for one parameter: ``rule(flags, n, c, param, grad, *state)`` gives the new parameter and the new state. ``n`` are the
numbers that all parameters share, ``c`` those that follow from a parameter's count of steps. What PyTorch computes from them in Python is
computed here in float64 too, and rounded where it meets a tensor. The formulas are those of the optimizers' documentation, in the order of
operations of PyTorch's implementation for single tensors, which CPU eager takes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


class Rule(NamedTuple):
    """An optimizer's update."""

    names: tuple[str, ...]  # of the numbers, in the order in which they are given
    shared: Callable[[SimpleNamespace], dict[str, Any]]  # what is computed from them
    counted: Callable[[SimpleNamespace, Any], dict[str, Any]] | None  # what follows from a count of steps
    update: Callable[..., tuple]


def _descent(flags: set[str], n: SimpleNamespace, param: Any, grad: Any) -> Any:
    """The gradient to go down: negated to maximize, with L2 regularization."""
    grad = -grad if "maximize" in flags else grad
    return grad + n.weight_decay * param if "weight_decay" in flags else grad


def _decayed(flags: set[str], n: SimpleNamespace, param: Any, grad: Any) -> tuple[Any, Any]:
    """Parameter and gradient after weight decay, which is decoupled (AdamW) or L2."""
    if "weight_decay" in flags and "decoupled_weight_decay" in flags:
        return param * n.keep, -grad if "maximize" in flags else grad
    return param, _descent(flags, n, param, grad)


def _sgd(flags, n, c, param, grad, buffer=None):
    grad = _descent(flags, n, param, grad)
    if buffer is None:
        return (param - n.lr * grad,)
    buffer = buffer * n.momentum + n.rest * grad
    grad = grad + n.momentum * buffer if "nesterov" in flags else buffer
    return param - n.lr * grad, buffer


def _adam(flags, n, c, param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq=None):
    param, grad = _decayed(flags, n, param, grad)
    exp_avg = exp_avg + n.rest1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * n.beta2 + n.rest2 * grad * grad
    largest = exp_avg_sq if max_exp_avg_sq is None else jnp.maximum(max_exp_avg_sq, exp_avg_sq)
    param = param - c.step_size * exp_avg / (jnp.sqrt(largest) / c.correction + n.eps)
    return (param, exp_avg, exp_avg_sq) if max_exp_avg_sq is None else (param, exp_avg, exp_avg_sq, largest)


def _rmsprop(flags, n, c, param, grad, square_avg, *state):
    grad = _descent(flags, n, param, grad)
    square_avg = square_avg * n.alpha + n.rest * grad * grad
    new, rest = [square_avg], list(state)
    average = square_avg
    if "centered" in flags:
        grad_avg = rest.pop(0)
        grad_avg = grad_avg + n.rest * (grad - grad_avg)
        average = square_avg - grad_avg * grad_avg
        new.append(grad_avg)
    average = jnp.sqrt(average) + n.eps
    if "momentum" not in flags:
        return param - n.lr * grad / average, *new
    buffer = rest.pop(0) * n.momentum + grad / average
    return param - n.lr * buffer, *new, buffer


def _adagrad(flags, n, c, param, grad, state_sum):
    grad = _descent(flags, n, param, grad)
    state_sum = state_sum + grad * grad
    return param - c.rate * grad / (jnp.sqrt(state_sum) + n.eps), state_sum


def _adadelta(flags, n, c, param, grad, square_avg, acc_delta):
    grad = _descent(flags, n, param, grad)
    square_avg = square_avg * n.rho + n.rest * grad * grad
    delta = jnp.sqrt(acc_delta + n.eps) / jnp.sqrt(square_avg + n.eps) * grad
    acc_delta = acc_delta * n.rho + n.rest * delta * delta
    return param - n.lr * delta, square_avg, acc_delta


def _adamax(flags, n, c, param, grad, exp_avg, exp_inf):
    grad = _descent(flags, n, param, grad)
    exp_avg = exp_avg + n.rest1 * (grad - exp_avg)
    exp_inf = jnp.maximum(exp_inf * n.beta2, jnp.abs(grad) + n.eps)
    return param - c.rate * exp_avg / exp_inf, exp_avg, exp_inf


def _radam(flags, n, c, param, grad, exp_avg, exp_avg_sq):
    param, grad = _decayed(flags, n, param, grad)
    exp_avg = exp_avg + n.rest1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * n.beta2 + n.rest2 * grad * grad
    adaptive = c.correction2 / (jnp.sqrt(exp_avg_sq) + n.eps)
    update = exp_avg / c.correction1 * n.lr
    return param - jnp.where(c.rect > 0, update * adaptive * c.rect, update), exp_avg, exp_avg_sq


def _nadam(flags, n, c, param, grad, exp_avg, exp_avg_sq, mu_product):
    param, grad = _decayed(flags, n, param, grad)
    exp_avg = exp_avg + n.rest1 * (grad - exp_avg)
    exp_avg_sq = exp_avg_sq * n.beta2 + n.rest2 * grad * grad
    mu_product = mu_product * c.mu.astype(mu_product.dtype)
    product = mu_product.astype(param.dtype)
    denominator = jnp.sqrt(exp_avg_sq / c.correction) + n.eps
    param = param - c.lr_grad / (1 - product) * (grad / denominator)
    return param - c.lr_average / (1 - product * c.mu_next) * (exp_avg / denominator), exp_avg, exp_avg_sq, mu_product


def _rprop(flags, n, c, param, grad, previous, step_size):
    grad = -grad if "maximize" in flags else grad
    sign = jnp.sign(grad * previous)
    factor = jnp.where(sign > 0, n.etaplus, jnp.where(sign < 0, n.etaminus, jnp.where(sign == 0, 1, sign)))
    step_size = jnp.clip(step_size * factor, n.step_size_min, n.step_size_max)
    grad = jnp.where(factor == n.etaminus, 0, grad)
    return param - jnp.sign(grad) * step_size, grad, step_size


def _asgd(flags, n, c, param, grad, average, mu, eta):
    grad = _descent(flags, n, param, grad)
    rate, weight = eta.astype(param.dtype), mu.astype(param.dtype)
    param = param * (1 - n.lambd * rate) - rate * grad
    average = jnp.where(mu != 1, average + (param - average) * weight, param)
    return param, average, c.mu, c.eta


def _adafactor(flags, n, c, param, grad, *state):
    grad = -grad if "maximize" in flags else grad
    smallest = n.eps1 if "eps1" in flags else jnp.finfo(param.dtype).eps
    alpha = jnp.maximum(n.eps2, jnp.sqrt(jnp.mean(param * param))) * c.rho
    param = param * n.keep if "weight_decay" in flags else param
    squared = grad * grad
    if len(state) == 2:  # a matrix: the variance's row and column
        row, column = (old + c.rest * (squared.mean(axis, keepdims=True) - old) for old, axis in zip(state, (-1, -2), strict=True))
        new, variance = (row, column), row * column / jnp.maximum(row.mean(-2, keepdims=True), smallest)
    else:
        variance = state[0] + c.rest * (squared - state[0])
        new = (variance,)
    update = lax.rsqrt(jnp.maximum(variance, smallest * smallest)) * grad
    return param - alpha / jnp.maximum(1, jnp.sqrt(jnp.mean(update * update)) / n.d) * update, *new


def _nesterov(n: SimpleNamespace, step: Any) -> dict[str, Any]:
    """NAdam's: the momentum's schedule, at this step and the next."""
    mu, mu_next = (n.beta1 * (1 - 0.5 * 0.96 ** (count * n.momentum_decay)) for count in (step, step + 1))
    return {
        "mu": mu,
        "mu_next": mu_next,
        "correction": 1 - n.beta2**step,
        "lr_grad": n.lr * (1 - mu),
        "lr_average": n.lr * mu_next,
    }


def _averaged(n: SimpleNamespace, step: Any) -> dict[str, Any]:
    """ASGD's for the step that follows."""
    return {"eta": n.lr / (1 + n.lambd * n.lr * step) ** n.alpha, "mu": 1 / jnp.maximum(1, step - n.t0)}


def _betas(n: SimpleNamespace) -> dict[str, Any]:
    return {"rest1": 1 - n.beta1, "rest2": 1 - n.beta2, "keep": 1 - n.lr * n.weight_decay}


def _rectified(n: SimpleNamespace, step: Any) -> dict[str, Any]:
    """RAdam's: the rectification is 0 where the average is still too short for one."""
    correction = 1 - n.beta2**step
    longest = 2 / (1 - n.beta2) - 1
    length = longest - 2 * step * n.beta2**step / correction
    long = jnp.where(length > 5, length, 6)  # the root of what is not used must not be of a negative number
    rect = jnp.sqrt((long - 4) * (long - 2) * longest / ((longest - 4) * (longest - 2) * long))
    return {"correction1": 1 - n.beta1**step, "correction2": jnp.sqrt(correction), "rect": jnp.where(length > 5, rect, 0)}


RULES = {
    "sgd": Rule(("lr", "momentum", "dampening", "weight_decay"), lambda n: {"rest": 1 - n.dampening}, None, _sgd),
    "adam": Rule(
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        _betas,
        lambda n, step: {"step_size": n.lr / (1 - n.beta1**step), "correction": jnp.sqrt(1 - n.beta2**step)},
        _adam,
    ),
    "rmsprop": Rule(("lr", "alpha", "eps", "weight_decay", "momentum"), lambda n: {"rest": 1 - n.alpha}, None, _rmsprop),
    "adagrad": Rule(
        ("lr", "lr_decay", "weight_decay", "eps"), lambda n: {}, lambda n, step: {"rate": n.lr / (1 + (step - 1) * n.lr_decay)}, _adagrad
    ),
    "adadelta": Rule(("lr", "rho", "eps", "weight_decay"), lambda n: {"rest": 1 - n.rho}, None, _adadelta),
    "adamax": Rule(("lr", "beta1", "beta2", "eps", "weight_decay"), _betas, lambda n, step: {"rate": n.lr / (1 - n.beta1**step)}, _adamax),
    "nadam": Rule(("lr", "beta1", "beta2", "weight_decay", "eps", "momentum_decay"), _betas, _nesterov, _nadam),
    "rprop": Rule(("etaminus", "etaplus", "step_size_min", "step_size_max"), lambda n: {}, None, _rprop),
    "asgd": Rule(("lambd", "lr", "t0", "alpha", "weight_decay"), lambda n: {}, _averaged, _asgd),
    "adafactor": Rule(
        ("lr", "beta2_decay", "eps1", "eps2", "d", "weight_decay"),
        lambda n: {"keep": 1 - n.lr * n.weight_decay},
        lambda n, step: {"rest": step**n.beta2_decay, "rho": jnp.minimum(n.lr, 1 / jnp.sqrt(step))},
        _adafactor,
    ),
    "radam": Rule(("lr", "beta1", "beta2", "weight_decay", "eps"), _betas, _rectified, _radam),
}


def _update(rule: Rule) -> Any:
    def update(outs, flags, numbers, steps, params, grads, overflows, *states):
        """``flags`` are the names of those that are set; ``steps`` are one 1-d array for all parameters (whose elements are equal if a flag
        says ``uniform``), a 0-d array each, or none; ``overflows`` are one number, which keeps all as it is if it isn't 0, or none.
        """
        given = SimpleNamespace(**dict(zip(rule.names, numbers, strict=True)))
        shared = {**vars(given), **rule.shared(given)}
        new_steps = [step + 1 for step in steps]
        counts = [new_steps[0][0]] if "uniform" in flags else new_steps
        counted = [] if rule.counted is None else [rule.counted(given, count.astype(np.float64)) for count in counts]
        of_dtype = {dtype: _rounded(shared, counted, len(params), dtype) for dtype in {opmath(param.dtype) for param in params}}
        written: list[list[Any]] = [[] for _ in range(1 + len(states))]
        for number, (param, grad, *state) in enumerate(zip(params, grads, *states, strict=True)):
            wide = opmath(param.dtype)
            n, each = of_dtype[wide]
            new = rule.update(set(flags), n, each[number], *(_widened(value, param, wide) for value in (param, grad, *state)))
            for column, value, old in zip(written, new, (param, *state), strict=True):
                column.append(value.astype(old.dtype))
        made = [*new_steps, *(value for column in written for value in column)]
        before = [*steps, *params, *(value for column in states for value in column)]
        for overflow in overflows:
            made = [jnp.where(overflow != 0, old, new) for old, new in zip(before, made, strict=True)]
        return made

    return update


def _widened(value: Any, param: Any, wide: Any) -> Any:
    """State of another dtype than the parameter's are single numbers, which the rule rounds itself."""
    return value.astype(wide) if value.dtype == param.dtype or value.ndim else value


def _rounded(shared: dict[str, Any], counted: list[dict[str, Any]], params: int, dtype: np.dtype) -> tuple[Any, list[Any]]:
    """The numbers in a dtype, and for each parameter those that follow from its steps."""
    n = SimpleNamespace(**{name: value.astype(dtype) for name, value in shared.items()})
    each = [{name: value.astype(dtype) for name, value in numbers.items()} for numbers in counted] or [{}]
    if any(value.ndim for value in each[0].values()):
        parts = {name: lax.split(value, [1] * params) for name, value in each[0].items()}
        each = [{name: values[number].reshape(()) for name, values in parts.items()} for number in range(params)]
    # Equal updates are one kernel for XLA, so that many parameters of one shape compile in the time of one: if nothing in them differs.
    return n, [SimpleNamespace(**numbers) for numbers in (each if len(each) == params else each * params)]


TABLE = {f"update::{name}": lowering(_update(rule)) for name, rule in RULES.items()}
