"""Why a value is not computed with, or not handed to a function, in a user's words: what it is, and what to write instead."""

from __future__ import annotations

from typing import Any

import torch

from surestep.replay.values import Either, Known, New, Value

_UNSEEN = "can be changed where nobody sees it"


def is_numpys(thing: Any) -> bool:
    """Whether it is an array or a number of NumPy's."""
    return type(thing).__module__.partition(".")[0] == "numpy"


def unfit(value: Value) -> str:
    """Of a value that is neither a tensor nor a number or text, nor made of these."""
    if isinstance(value, Known):
        return _unfit_object(value, value.object)
    if isinstance(value, Either):
        return f"{value} is computed with. Decide on the branch outside of the step, or compute both and choose with torch.where"
    if isinstance(value, New):
        return f"{value} is computed with, and what its class says of that is not followed. Write a method, and call it by its name"
    return f"{value} is handed to a function that may call it. Call it in the step, and hand on what it gives"


def _unfit_object(value: Known, thing: Any) -> str:
    kind = type(thing)
    what = f"{value} (a {kind.__name__})"
    if is_numpys(thing):
        if getattr(thing, "ndim", 1):
            return f"{what} is NumPy's, and {_UNSEEN}. Pass it as a tensor: torch.from_numpy(...)"
        return f"{what} is a number of NumPy's. Make it one of Python's outside of the step: float(...)"
    if isinstance(thing, (set, frozenset)):
        return f"{value} is a set, whose order is not told. Make it a tuple outside of the step: tuple(sorted(...))"
    if hasattr(kind, "__next__"):
        return f"{what} moves on with each element. Take the next one outside of the step, and pass it"
    if isinstance(thing, (bytearray, memoryview)) or kind.__module__ == "array":
        return f"{what} {_UNSEEN}. Make it bytes or a tuple"
    if callable(thing) or isinstance(thing, torch.nn.Module):
        return f"{value} is handed to a function that may call it. Call it in the step, and hand on what it gives"
    if isinstance(thing, (list, dict, tuple)):
        return f"{what} is computed with as a whole. Take its elements, or make a tensor of it outside of the step"
    return f"{what} is computed with, and what its class says of that is not followed. Take its numbers, texts or tensors by attribute"


# Methods of tensors that do more than to compute, and what to do instead.
_METHODS = {
    "requires_grad_": "changes what later calls do. Call it before the step",
    "retain_grad": "keeps a gradient in Python. Return it: torch.autograd.grad(...)",
    "register_hook": "adds Python that must run at each call. Compute with the gradient after backward()",
    "register_post_accumulate_grad_hook": "adds Python that must run at each call. Compute with the gradient after backward()",
    "numpy": "reads values on the host. Read them after the step, or in add_step_closure",
    "tolist": "reads values on the host. Read them after the step, or in add_step_closure",
    "apply_": "calls a function for each element on the host. Use operations of PyTorch's",
    "map_": "calls a function for each element on the host. Use operations of PyTorch's",
}


def of_method(of: Any, name: str) -> str:
    """Of a tensor's method that isn't on the list of those that only compute."""
    return f"{of}.{name}() {_METHODS.get(name, 'does more than to compute, or is not known. Call it outside of the step')}"
