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
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from surestep import _compat
from surestep.tensor import update
from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor


class Rule(NamedTuple):
    """How a function of ``torch.optim`` is called, and what its rule in ``lower.update`` takes."""

    numbers: tuple[str, ...]  # arguments that are inputs of the program
    flags: tuple[str, ...]  # arguments that say which formula it is, by being true (not zero)
    steps: bool = True  # whether its last list counts the steps
    used: Callable[[Mapping[str, Any]], list[int]] | None = None  # which lists of state it uses; if None, those that hold any
    split: Callable[[torch.Tensor], bool] | None = None  # tells parameters apart that have other state, by their gradient
    narrow: bool = True  # whether for half precision, too


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
    "nadam": Rule(
        ("lr", "beta1", "beta2", "weight_decay", "eps", "momentum_decay"), ("maximize", "weight_decay", "decoupled_weight_decay")
    ),
    "rprop": Rule(("etaminus", "etaplus", "step_size_min", "step_size_max"), ("maximize",)),
    "asgd": Rule(("lambd", "lr", "t0", "alpha", "weight_decay"), ("maximize", "weight_decay")),
    "adafactor": Rule(
        ("lr", "beta2_decay", "eps1", "eps2", "d", "weight_decay"),
        ("maximize", "weight_decay", "eps1"),
        split=lambda grad: grad.dim() > 1,
        narrow=False,
    ),
}
_MODULES = {"adafactor": "torch.optim._adafactor"}
# Where a parameter group has an argument of the function in a tuple.
_IN_GROUP = {
    "beta1": ("betas", 0),
    "beta2": ("betas", 1),
    "etaminus": ("etas", 0),
    "etaplus": ("etas", 1),
    "eps1": ("eps", 0),
    "eps2": ("eps", 1),
    "step_size_min": ("step_sizes", 0),
    "step_size_max": ("step_sizes", 1),
}

_UNSUITED = ("grad_scale", "found_inf", "has_complex", "has_sparse_grad")


def _in_a_tuple(given: Mapping[str, Any], name: str) -> Any:
    if name not in _IN_GROUP:
        return given.get(name)
    holder, position = _IN_GROUP[name]
    return given[holder][position]


def numbers_of(rule: Rule, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers that a rule takes, out of a parameter group or the arguments of the function; 0 for one that is None."""
    values = [given[name] if name in given else _in_a_tuple(given, name) for name in rule.numbers]
    return tuple([0.0 if value is None else value for value in values])


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are Python's numbers, by which a rule computes as PyTorch does; NumPy's float64 is one, a tensor isn't."""
    return all(isinstance(value, (float, int)) for value in values)


def flags_of(rule: Rule, given: Mapping[str, Any]) -> list[str]:
    """The flags that are set, out of a parameter group or the arguments of the function."""
    return [name for name in rule.flags if (given[name] if name in given else _in_a_tuple(given, name))]


def _step(name: str, original: Callable[..., None]) -> Callable[..., None]:
    """A function of ``torch.optim``, with the step as one operation where that can be.

    ``GradScaler`` leaves it to a fused step to take the scale away, and to do nothing where it has found an infinity.
    """
    rule = RULES[name]

    @functools.wraps(original)
    def step(params: list, grads: list, *lists: Any, **options: Any) -> None:
        if type(options.get("found_inf")) is XlaTensor:
            scale, found = options["grad_scale"], options["found_inf"]
            with unless(found):
                unscaled = grads if scale is None else [grad / scale for grad in grads]
                return step(params, unscaled, *lists, **{**options, "grad_scale": None, "found_inf": None})
        numbers = numbers_of(rule, options)
        prepared = []
        looked_through = torch.is_grad_enabled()  # differentiable=True, of which sgd isn't told
        if update.stepping and not looked_through and are_numbers(numbers) and not any(map(options.get, _UNSUITED)):
            prepared = [_prepared(rule, *part, options) for part in _parts(rule, params, grads, lists)]
        if not prepared or None in prepared:
            update.note_written_out(name, params)
            if any(overflow.item() for overflow in update.overflows):
                return None
            return original(params, grads, *lists, **options)
        flags = flags_of(rule, options)
        for steps, params_, grads_, states in prepared:  # type: ignore[not-iterable]
            update.update(name, flags, tuple(map(float, numbers)), steps, params_, grads_, states)
        return None

    return step


def _parts(rule: Rule, params: list, grads: list, lists: tuple) -> list[tuple[list, list, list]]:
    """Parameters, gradients and lists of state, apart by what state they have."""
    if rule.split is None or not params:
        return [(params, grads, list(lists))] if params else []
    parts = []
    for kind in (True, False):
        chosen = [position for position, grad in enumerate(grads) if rule.split(grad) is kind]
        if chosen:
            parts.append(tuple([column[position] for position in chosen] for column in (params, grads, *lists)))
    return [(params, grads, list(rest)) for params, grads, *rest in parts]


def _prepared(rule: Rule, params: list, grads: list, lists: list, options: dict[str, Any]) -> tuple[list, list, list, list] | None:
    """The steps, parameters, gradients and lists of state that an update takes; None where PyTorch's own function must do it."""
    if len(lists) < rule.steps:
        return None
    trace = params[0]._storage.trace if type(params[0]) is XlaTensor else None
    for param, grad in zip(params, grads, strict=True):
        if type(param) is not XlaTensor or type(grad) is not XlaTensor:
            return None
        if param._storage.trace is not trace or grad._storage.trace is not trace:
            return None
        lies, other = param._layout, grad._layout
        if lies is not other and lies.sizes != other.sizes:
            return None
        if not lies.dtype.is_floating_point or (not rule.narrow and lies.dtype.itemsize < 4):
            return None
    if update.entangled(params, grads):
        return None
    if not rule.steps:
        states = _momentum_buffers(params, lists[0], options)
        return None if states is None else ([], params, grads, states)
    *states, steps = lists
    used = [position for position, column in enumerate(states) if any(tensor is not None for tensor in column)]
    if rule.used is not None:
        used = rule.used(options)
    for position in used:
        _send(params, states[position])
    if not all(type(tensor) is XlaTensor for position in used for tensor in states[position]) or not _on_device(params, steps):
        return None
    vector = update.as_vector(steps)
    if vector is not None:
        update.look_at(vector)
    return ([vector] if vector is not None else steps), params, grads, [states[position] for position in used]


def _send(params: list, column: list) -> None:
    """Moves numbers of the state that are on the host (NAdam's products) to the device, in the optimizer's state and in the list."""
    optimizer = update.stepping[-1]
    for position, (param, held) in enumerate(zip(params, column, strict=True)):
        if type(held) is torch.Tensor and held.ndim == 0 and held.device.type == "cpu":
            state = optimizer.state.get(param, {})
            for key in [key for key, value in state.items() if value is held]:
                state[key] = column[position] = update.sent(held, param._storage.trace)


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


KINDS: dict[type, str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adadelta: "adadelta",
    torch.optim.Adamax: "adamax",
    torch.optim.RAdam: "radam",
    torch.optim.NAdam: "nadam",
    torch.optim.Rprop: "rprop",
    torch.optim.ASGD: "asgd",
    torch.optim.Adafactor: "adafactor",
}


def _scaled_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """How ``GradScaler`` steps an optimizer. PyTorch reads whether there was an overflow, and steps if not; here the program decides."""

    @functools.wraps(original)
    def _maybe_opt_step(self: Any, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        if args or kwargs or len(found) != 1 or type(found[0]) is not XlaTensor or not steps_plainly(optimizer):
            return original(self, optimizer, optimizer_state, *args, **kwargs)
        with unless(found[0]):
            return optimizer.step()

    return _maybe_opt_step


@contextmanager
def unless(overflow: XlaTensor) -> Generator[None]:
    """The optimizer's step inside changes nothing where a number isn't 0: the program sees to it, and nothing is read."""
    update.overflows.append(overflow)
    try:
        yield
    finally:
        update.overflows.clear()


def steps_plainly(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of an optimizer is PyTorch's own, and nobody's Python hears of it: so that one which changes nothing is none."""
    step = vars(optimizer).get("step")
    return (
        type(optimizer) in KINDS
        and (step is None or _compat.is_scheduled(step))
        and all(map(only_ours, _compat.step_hooks(optimizer).values()))
    )


def only_ours(hooks: Mapping[Any, Any]) -> bool:
    """Whether the hooks are surestep's own."""
    return all((hook.__module__ or "").startswith("surestep.") for hook in hooks.values())


def function_of(kind: type) -> tuple[Mapping[str, Any], str]:
    """Where PyTorch looks for the function that computes an optimizer's step: a module's names, and which."""
    name = KINDS[kind]
    return vars(importlib.import_module(_MODULES.get(name, f"torch.optim.{name}"))), name


STEPS: set[Callable[..., None]] = set()  # the functions that stand there


def _install() -> None:
    _compat.serve_fused_optimizers("xla")
    _compat.around_scaled_step(_scaled_step)
    for name in RULES:
        module = importlib.import_module(_MODULES.get(name, f"torch.optim.{name}"))
        step = _step(name, getattr(module, name))
        setattr(module, name, step)
        STEPS.add(step)
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)


at_first_use(_install)
