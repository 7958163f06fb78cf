"""torch_xla.core.xla_op_registry (`xor`): functions over XLA's operations, called with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from surestep.torch_xla import _later
from surestep.torch_xla.core import xla_builder

__all__ = ["Op", "register"]


class Op:
    """What ``register`` gives: called with tensors, and with numbers by name, it gives a tensor, or a tuple of them."""

    def __init__(self, name: str, opfn: Callable[..., Any]):
        def lowered(*arrays: Any, **numbers: Any) -> Any:
            return xla_builder.values(opfn(*map(xla_builder.Op, arrays), **numbers))

        self._name = name
        self._function = lowered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return xla_builder.call_jax(self._function, args, kwargs, self._name)


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """``opfn`` as an operation on tensors: it takes and gives ``xla_builder.Op``, and is traced into the program around each call."""
    return Op(name, opfn)


__getattr__ = _later.getter("torch_xla.core.xla_op_registry")
