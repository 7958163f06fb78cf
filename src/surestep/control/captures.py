"""Tensors from outside through which gradients flow into a function that is recorded as a trace of its own.

Each is replaced by a stand-in where PyTorch's functions are called, so that the function's graph ends at the stand-ins: its derivative is
that of the function alone, whatever the graph outside of it looks like.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from surestep import _compat
from surestep.observe import frames
from surestep.tensor.xla_tensor import XlaTensor

_active: list[Captures | None] = []  # of the functions that are being recorded, the innermost last
_OF_THE_TENSOR = {"grad", "grad_fn", "is_leaf", "_backward_hooks", "requires_grad"}  # what is asked of the tensor itself


@contextmanager
def outer() -> Generator[None]:
    """While a function is recorded without gradients: the one around it doesn't look in."""
    _active.append(None)
    try:
        yield
    finally:
        _active.pop()


def seen_from_around(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a function read from outside, as the function around it, that is being recorded too, knows it."""
    around = _active[-1] if _active else None
    return tensors if around is None else [around.substituted(tensor) for tensor in tensors]


class Captures(TorchFunctionMode):
    """Sees each of PyTorch's functions that is called, and replaces what is from outside among its arguments."""

    def __init__(self, name: str, serial: int, leaves: list[XlaTensor]):
        super().__init__()
        self.name = name
        self.serial = serial
        self.ours = {id(leaf): leaf for leaf in leaves}
        self.stands: dict[int, tuple[torch.Tensor, XlaTensor]] = {}  # by identity: the tensor, and its stand-in
        self.seen: dict[int, torch.Tensor] = {}  # by their storage: tensors from outside
        self.start = _compat.next_sequence_number()

    def __enter__(self) -> Captures:
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        _active.pop()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if _active[-1] is self and not _about_the_tensor(func):
            args, kwargs = tree_map(self.substituted, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def substituted(self, value: Any) -> Any:
        """The stand-in for a tensor from outside that wants a gradient; anything else is itself."""
        if type(value) is not XlaTensor:
            return value
        if value._storage.born != self.serial:
            self.seen.setdefault(id(value._storage), value)
        if not value.requires_grad or id(value) in self.ours or not self._from_outside(value):
            return value
        if id(value) not in self.stands:
            with torch._C.DisableTorchFunction():
                stand: Any = value.detach().requires_grad_()
            self.stands[id(value)] = value, stand
            self.ours[id(stand)] = stand
        return self.stands[id(value)][1]

    def _from_outside(self, tensor: XlaTensor) -> bool:
        node = tensor.grad_fn
        return tensor._storage.born != self.serial if node is None else _compat.sequence_number(node) < self.start

    def direct(self, results: Any) -> list[torch.Tensor]:
        """Leaves of autograd from outside to which the graph of the results leads all the same: given to a ``torch.autograd.Function``."""
        found: dict[int, torch.Tensor] = {}
        visited: set[Any] = set()
        waiting = [result.grad_fn for result in results if result.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in visited:
                continue
            visited.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) not in self.ours and variable._storage.born != self.serial:
                    found[id(variable)] = variable
                continue
            if _compat.sequence_number(node) < self.start:
                raise RuntimeError(
                    f"{self.name}: a torch.autograd.Function in it takes a tensor from outside that has a graph of its own ({node.name()}; "
                    f"{frames.user_line()}). Give the tensor to the function that is recorded, as an argument"
                )
            waiting += [following for following, _ in node.next_functions if following is not None]
        return list(found.values())


def _about_the_tensor(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__set__", "__delete__"):
        return True
    return name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") in _OF_THE_TENSOR
