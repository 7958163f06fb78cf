"""Python that a replay runs for real: a scheduler's step, which changes the optimizer's numbers for the next call, and step closures."""

from __future__ import annotations

import types
from typing import Any

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from surestep.replay import attributes
from surestep.replay.values import Known, New, NotReplayable, Value

# Those that change nothing but themselves and the optimizer's groups. What they call of the user's is followed.
_SCHEDULERS: tuple[Any, ...] = tuple(
    getattr(lr_scheduler, name)
    for name in (
        *("LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR"),
        *("CosineAnnealingLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "CyclicLR", "SequentialLR", "ChainedScheduler"),
    )
)
_OF_GROUPS = {"params", "foreach", "fused", "capturable", "differentiable"}  # what they leave alone


def scheduler_step(walk: Any, receiver: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``scheduler.step()``: a replay calls it too, after the program. So what it changes must not be read in what follows."""
    if walk.branches:
        raise NotReplayable(f"{receiver}.step() is called under a condition on what is computed")
    if args or kwargs:
        raise NotReplayable(f"{receiver}.step(...) is given an argument. Call it after the step")
    scheduler: Any = receiver.object
    _check(walk, scheduler)
    walk.guards.schedulers.append(scheduler)
    return Known(None)


def _check(walk: Any, scheduler: Any) -> None:
    from surestep.replay import calls

    if type(scheduler) not in _SCHEDULERS:
        raise NotReplayable(f"a {type(scheduler).__name__}'s step() is not followed. Call it after the step")
    walk.guards.type(scheduler)
    own = vars(scheduler)
    for function in (*own.get("lr_lambdas", ()), own.get("_scale_fn_custom")):
        if isinstance(function, types.FunctionType):
            calls.call(walk, Known(function, "the scheduler's function"), [New(int)], {})
        elif function is not None:
            raise NotReplayable("a scheduler calls an object of the user's. Give it a function, or call its step() after the step")
    for inner in own.get("_schedulers", ()):
        _check(walk, inner)
    optimizer = own.get("optimizer")
    walk.guards.close(own, ())
    if optimizer is not None:
        for group in optimizer.param_groups:
            walk.guards.close(group, _OF_GROUPS)


def is_scheduler_step(receiver: Any, function: Any) -> bool:
    """Whether it is PyTorch's ``step`` of a scheduler."""
    return isinstance(receiver, LRScheduler) and getattr(function, "__name__", "") == "step" and attributes.is_library(function)


def step_closure(walk: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``add_step_closure(closure, args)``: a replay adds it too, with the tensors that it made."""
    given = {**dict(zip(("closure", "args", "run_async"), args, strict=False)), **kwargs}
    if walk.branches:
        raise NotReplayable("a step closure is added under a condition on what is computed")
    closure, values = given.get("closure"), given.get("args", Known(()))
    if not isinstance(closure, Known):
        raise NotReplayable(f"{closure} is given to add_step_closure: define it outside of the step, and give it its arguments with args=")
    items = attributes.iterate(walk, values)
    if items is None or not all(isinstance(item, (Known, New)) for item in items):
        raise NotReplayable("the arguments of a step closure are not known")
    walk.guards.closures += 1
    return Known(None)
