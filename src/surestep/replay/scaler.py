"""``torch.amp.GradScaler`` inside a step. Its Python state says how far the round of scale, unscale, step and update has come: a call that
goes the whole round leaves it as it was.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep.loop.updates import steps_plainly
from surestep.replay import attributes
from surestep.replay.values import Known, NotReplayable, Value

_NUMBERS = ("_enabled", "_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval", "_device")


def method(walk: Any, receiver: Known, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A method of a scaler; None where it is not PyTorch's."""
    from surestep.replay import calls, optimizers

    if not attributes.is_library(function):
        return None
    name, scaler = function.__name__, receiver.object
    if name not in ("scale", "unscale_", "step", "update") or kwargs or walk.branches:
        raise NotReplayable(f"{receiver}.{name}() reads a value, or is called under a condition")
    own = vars(scaler)
    walk.guards.type(scaler)
    for attribute in _NUMBERS:
        walk.guards.item(own, attribute, own[attribute], f"{receiver.path}.")
    if own["_enabled"]:
        if own["_scale"] is None:
            raise NotReplayable(f"{receiver} has no scale yet: the first call makes it")
        for attribute in ("_scale", "_growth_tracker"):
            walk.guards.item(own, attribute, own[attribute], f"{receiver.path}.")
            walk.guards.tensor(own[attribute], f"{receiver.path}.{attribute}")
        walk.guards.unused(own, "_per_optimizer_states", f"{receiver.path} in the middle of a round: its states")
    if name == "scale":
        return calls.computed(walk, args, {}) if own["_enabled"] else args[0]
    if name == "update":
        if args:
            raise NotReplayable(f"{receiver}.update() is given a new scale")
        walk.scaling.discard(id(scaler))
        return Known(None)
    optimizer = args[0]
    if len(args) != 1 or not isinstance(optimizer, Known) or not isinstance(optimizer.object, torch.optim.Optimizer):
        raise NotReplayable(f"{receiver}.{name}() is given more than an optimizer")
    if own["_enabled"]:
        walk.scaling.add(id(scaler))
    if name == "step":
        if not steps_plainly(optimizer.object):
            raise NotReplayable(f"{receiver}.step() reads whether there was an overflow, for {optimizer} has a step of its own or hooks")
        optimizers.step(walk, optimizer)
    return Known(None)
