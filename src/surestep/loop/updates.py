"""``optimizer.step()`` of ``torch.optim`` as one recorded operation a parameter group.

Written out, AdamW over 100 tensors is 1,200 operations. PyTorch's classes gather what a step needs and call a function that computes
(``torch.optim.adam.adam``, ...); from the device's first use on, those functions give what lies wholly on an xla device to
``tensor.update``, and all else to PyTorch's own.

The count of steps that Adam's kind keeps on the host moves to the device with the first step, one vector for all parameters of a group, so
that a step computes nothing on the host.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from surestep.tensor import update
from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor


class Rule(NamedTuple):
    """How a function of ``torch.optim`` is called, and what its rule in ``lower.update`` takes."""

    numbers: tuple[str, ...]  # arguments that are inputs of the program
    flags: tuple[str, ...]  # arguments that say which formula it is, by being true (not zero)
    steps: bool = True  # whether its last list counts the steps
    used: Callable[[Mapping[str, Any]], list[int]] | None = None  # which lists of state it uses; all if None


def _rmsprop_state(given: Mapping[str, Any]) -> list[int]:
    return [0, *([1] if given["centered"] else []), *([2] if given["momentum"] else [])]


RULES = {
    "sgd": Rule(("lr", "momentum", "dampening", "weight_decay"), ("maximize", "nesterov", "weight_decay", "momentum"), steps=False),
    "adam": Rule(
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        ("maximize", "amsgrad", "weight_decay", "decoupled_weight_decay"),
        used=lambda given: [0, 1, 2] if given["amsgrad"] else [0, 1],
    ),
    "rmsprop": Rule(
        ("lr", "alpha", "eps", "weight_decay", "momentum"), ("maximize", "centered", "weight_decay", "momentum"), used=_rmsprop_state
    ),
    "adagrad": Rule(("lr", "lr_decay", "weight_decay", "eps"), ("maximize", "weight_decay")),
    "adadelta": Rule(("lr", "rho", "eps", "weight_decay"), ("maximize", "weight_decay")),
    "adamax": Rule(("lr", "beta1", "beta2", "eps", "weight_decay"), ("maximize", "weight_decay")),
    "radam": Rule(("lr", "beta1", "beta2", "weight_decay", "eps"), ("maximize", "weight_decay", "decoupled_weight_decay")),
}

_UNSUITED = ("differentiable", "fused", "grad_scale", "found_inf", "has_complex", "has_sparse_grad")


def numbers_of(rule: Rule, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers that a rule takes, out of a parameter group or the arguments of the function."""
    betas = given.get("betas")
    return tuple(betas[name == "beta2"] if betas is not None and name in ("beta1", "beta2") else given[name] for name in rule.numbers)


def flags_of(rule: Rule, given: Mapping[str, Any]) -> list[str]:
    """The flags that are set, out of a parameter group or the arguments of the function."""
    return [name for name in rule.flags if given.get(name)]


def _step(name: str, original: Callable[..., None]) -> Callable[..., None]:
    rule = RULES[name]

    @functools.wraps(original)
    def step(params: list, grads: list, *lists: Any, **options: Any) -> None:
        prepared = _prepared(rule, params, grads, lists, options)
        if prepared is None:
            return original(params, grads, *lists, **options)
        steps, states = prepared
        update.update(name, flags_of(rule, options), tuple(map(float, numbers_of(rule, options))), steps, params, grads, states)
        return None

    return step


def _prepared(rule: Rule, params: list, grads: list, lists: tuple, options: dict[str, Any]) -> tuple[list, list] | None:
    """The steps and the lists of state that an update takes; None where PyTorch's own function must do it."""
    if not update.stepping or not params or len(lists) < rule.steps or any(options.get(name) for name in _UNSUITED):
        return None
    if any(type(number) not in (float, int) for number in numbers_of(rule, options)):
        return None
    device = params[0].device
    for param, grad in zip(params, grads, strict=True):
        if type(param) is not XlaTensor or type(grad) is not XlaTensor or param.device != device or grad.device != device:
            return None
        if param.shape != grad.shape or not param.dtype.is_floating_point:
            return None
    if update.entangled(params, grads):
        return None
    if not rule.steps:
        states = _momentum_buffers(params, lists[0], options)
        return None if states is None else ([], states)
    *states, steps = lists
    used = list(range(len(states))) if rule.used is None else rule.used(options)
    if not all(type(tensor) is XlaTensor for position in used for tensor in states[position]) or not _on_device(params, steps):
        return None
    vector = update.as_vector(steps)
    if vector is not None:
        update.look_at(vector)
    return ([vector] if vector is not None else steps), [states[position] for position in used]


def _momentum_buffers(params: list, buffers: list, options: dict[str, Any]) -> list[list] | None:
    """SGD's state. Its first buffer is the first gradient: what a buffer of zeros becomes, unless the gradient is dampened."""
    if not options["momentum"]:
        return []
    if any(buffer is None for buffer in buffers):
        if options["dampening"]:
            return None
        buffers[:] = [update.zeros(param) if buffer is None else buffer for param, buffer in zip(params, buffers, strict=True)]
    return [buffers] if all(type(buffer) is XlaTensor for buffer in buffers) else None


def _on_device(params: list, steps: list) -> bool:
    """Moves counts of steps that are on the host to the device, in the optimizer's state and in the list. False if they are not its own."""
    optimizer = update.stepping[-1]
    host = [position for position, step in enumerate(steps) if type(step) is not XlaTensor]
    if not host:
        return True
    states = [optimizer.state.get(params[position], {}) for position in host]
    if any(state.get("step") is not steps[position] for state, position in zip(states, host, strict=True)):
        return False
    if len({(steps[position].dtype, steps[position].device.type, steps[position].ndim) for position in host}) > 1:
        return False
    moved = update.packed([steps[position] for position in host], params[0]._storage.trace)
    for state, position, step in zip(states, host, moved, strict=True):
        state["step"] = steps[position] = step
    return True


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    update.stepping[:] = [optimizer]


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    update.stepping.clear()


def _install() -> None:
    for name in RULES:
        module = importlib.import_module(f"torch.optim.{name}")
        setattr(module, name, _step(name, getattr(module, name)))
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)


at_first_use(_install)
