"""Methods of optimizers. A step is one recorded operation a group (`loop.updates`), whose numbers a replay takes from the group anew."""

from __future__ import annotations

from typing import Any

import torch

from surestep import _compat
from surestep.execute.world import replica
from surestep.loop.updates import KINDS, RULES, STEPS, Rule, function_of, only_ours
from surestep.replay import attributes
from surestep.replay.values import Known, NotReplayable, Value


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule by which an optimizer of `torch.optim` steps."""
    return RULES[KINDS[type(optimizer)]]


def method(walk: Any, receiver: Known, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A method of an optimizer of PyTorch's; None where it is the user's own, to be followed."""
    optimizer = receiver.object
    if type(optimizer) not in KINDS:
        if attributes.is_library(function):
            raise _other_kind(receiver)
        return None
    if not attributes.is_library(function):
        return None  # what somebody has put in its place
    if function.__name__ == "zero_grad":
        _guard(walk, receiver)
        return Known(None)
    if function.__name__ == "step":
        if args or kwargs:
            raise NotReplayable(f"{receiver}.step(closure) runs the closure's Python. Call backward() in the step, and step() without one")
        return step(walk, receiver)
    raise NotReplayable(f"{receiver}.{function.__name__}() is not known to do the same at each call")


def _other_kind(receiver: Known) -> NotReplayable:
    kinds = ", ".join(sorted(kind.__name__ for kind in KINDS))
    return NotReplayable(f"{receiver} is a {type(receiver.object).__name__}: of torch.optim {kinds} are replayed")


def scheduled_step(walk: Any, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``optimizer.step`` after a scheduler was made for the optimizer, which notes that it is called."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    optimizer = cells["opt_ref"].cell_contents() if "opt_ref" in cells else None
    if not isinstance(optimizer, torch.optim.Optimizer) or args or kwargs:
        raise NotReplayable("optimizer.step is wrapped by something that is not followed")
    return step(walk, Known(optimizer, "the optimizer"))


def reduced_step(walk: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``xm.optimizer_step``: the collectives by which it reduces gradients are a part of the program, and announced at each replay."""
    given = {**dict(zip(("optimizer", "barrier", "optimizer_args", "groups"), args, strict=False)), **kwargs}
    receiver = given.get("optimizer")
    if not isinstance(receiver, Known):
        raise NotReplayable("which optimizer xm.optimizer_step is given, is not known")
    if "optimizer_args" in given:
        raise NotReplayable(f"xm.optimizer_step is given arguments for {receiver}.step(), which may run the user's Python")
    if replica().size > 1 and "groups" in given:
        raise NotReplayable("xm.optimizer_step is given groups of processes")
    walk.guards.reduces = True
    return step(walk, receiver)


def step(walk: Any, receiver: Known) -> Value:
    """``optimizer.step()``"""
    optimizer = receiver.object
    if type(optimizer) not in KINDS:
        raise _other_kind(receiver)
    for name, hooks in _compat.step_hooks(optimizer).items():
        if not only_ours(hooks):
            raise NotReplayable(f"{receiver} has {name}, whose Python must run at each call")
        walk.guards.whole(hooks, f"{receiver.path}: {name}")
    names, name = function_of(type(optimizer))
    if names[name] not in STEPS:
        raise NotReplayable(f"torch.optim's function {name} was replaced, and isn't followed there")
    walk.guards.item(names, name, names[name], "torch.optim's function ")
    _guard(walk, receiver)
    if any(id(group) in walk.guards.closed for group in optimizer.param_groups):
        raise NotReplayable(f"{receiver}.step() comes after its scheduler's step(). PyTorch wants it before")
    for group in optimizer.param_groups:
        tensor = next((name for name, value in group.items() if isinstance(value, torch.Tensor)), None)
        if tensor is not None:
            raise NotReplayable(f"{receiver}'s {tensor} is a tensor. Make it a number, which a replay takes anew at each call: float(...)")
    walk.guards.optimizers[id(optimizer)] = (optimizer, receiver.path)
    return Known(None)


def _guard(walk: Any, receiver: Known) -> None:
    """The groups and their parameters; and the state of each."""
    optimizer = receiver.object
    walk.guards.type(optimizer)
    own = vars(optimizer)
    walk.guards.item(own, "param_groups", own["param_groups"], f"{receiver.path}.")
    walk.guards.item(own, "state", own["state"], f"{receiver.path}.")
    walk.guards.sequence(own["param_groups"], f"{receiver.path}.param_groups")
    for number, group in enumerate(own["param_groups"]):
        path = f"{receiver.path}.param_groups[{number}]"
        walk.guards.item(group, "params", group["params"], path)
        walk.guards.sequence(group["params"], f"{path}['params']")
        for name in ("foreach", "fused", "capturable", "differentiable"):
            if name in group:
                walk.guards.item(group, name, group[name], path)
        for position, parameter in enumerate(group["params"]):
            walk.guards.tensor(parameter, f"{path}['params'][{position}]")
            walk.guards.stepped.add(id(parameter))
    walk.guards.whole(own["state"], f"{receiver.path}.state")
    for state in own["state"].values():
        walk.guards.whole(state, f"{receiver.path}.state")
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                walk.guards.tensor(value, f"{receiver.path}.state[...]['{name}']")
