"""Takes a module's parameters out of it, in a way that their names still find them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from surestep import _compat
from surestep.parallel.sharded import Unit, in_pass

MARK = "_sharded_in"  # on a parameter that was taken out: where it is now


class Place(NamedTuple):
    """Where a whole parameter comes from."""

    unit: Unit
    position: int


class Parameters(dict[str, Any]):
    """A module's parameters, some of which are sharded. Those aren't counted among them.

    Asked for by name they are gathered, in a forward or backward pass, of this module or of one around it. Elsewhere they are what is left
    of them, without elements: `print(model)` looks whether there is a bias, on one process perhaps.
    """

    def __init__(self, own: dict[str, Any]):
        super().__init__(own)
        self.sharded: dict[str, tuple[Place, torch.nn.Parameter]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.sharded or super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        if name not in self.sharded:
            return super().__getitem__(name)
        (unit, position), left = self.sharded[name]
        return unit.whole(position) if in_pass() else left


def take_out(module: torch.nn.Module, name: str, place: Place) -> None:
    """``module.name`` is gathered from now on.

    The parameter that it was loses its elements: what holds it beside the module would otherwise go on with a copy that is never trained.
    """
    found = vars(module)["_parameters"]
    if not isinstance(found, Parameters):
        found = vars(module)["_parameters"] = Parameters(found)
    parameter = found.pop(name)
    found.sharded[name] = place, parameter
    if not hasattr(parameter, MARK):
        setattr(parameter, MARK, place)
        parameter.data = parameter.data.new_empty(0)
        parameter.grad = None


def check_optimizers() -> None:
    """From now on an optimizer that holds parameters which were taken out says so at its step, instead of training nothing."""
    register_optimizer_step_pre_hook(_check)


def check_clipping() -> None:
    """From now on ``torch.nn.utils.clip_grad_norm_`` of parts is an error: each process would scale by the norm of its own."""
    _compat.before_clipping(_check_whole)


def _check_whole(parameters: list[torch.Tensor]) -> None:
    if any(getattr(parameter, "_is_sharded", False) for parameter in parameters):
        raise RuntimeError(
            "torch.nn.utils.clip_grad_norm_ sees the parts of this process only, so that each process would scale its gradients by another "
            "norm: write model.clip_grad_norm_(max_norm) of the outermost XlaFullyShardedDataParallel"
        )


def _check(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if any(hasattr(parameter, MARK) for group in optimizer.param_groups for parameter in group["params"]):
        raise RuntimeError(
            "the optimizer holds parameters as they were before XlaFullyShardedDataParallel sharded them, which are not trained any more: "
            "make it afterwards, from the wrapped module's parameters()"
        )
