"""Lowerings that users give for operators of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from surestep import _compat
from surestep.execute import dtypes
from surestep.lower.table import lowerings
from surestep.tensor.operation import Operation, name_of
from surestep.tensor.stand_ins import Stand
from surestep.tensor.xla_tensor import HANDLERS

_Function = TypeVar("_Function", bound=Callable[..., Any])


def lowering(operator: str) -> Callable[[_Function], _Function]:
    """Says what a custom operator means in JAX: ``@surestep.lowering("mylib::scale")``, or ``"mylib::scale.overload"``.

    The function takes the operator's arguments: JAX arrays where its schema has tensors, Python values for the rest. It returns an array,
    or a tuple of them where the operator returns several tensors. It is traced into the program around it, and again where a Python value
    or a shape changes. Gradients are what ``torch.library.register_autograd`` says.

    Raises:
        ValueError: There is no such operator, it is PyTorch's own, it has a lowering already, or it overwrites its arguments.
    """
    from surestep.lower.spec import Lowering  # JAX is imported when it is first needed

    overload = _found(operator)
    name = name_of(overload)
    if overload._schema.is_mutable:
        raise ValueError(
            f"surestep.lowering({operator!r}): {overload._schema} overwrites its arguments, and JAX's arrays can't be overwritten. Give "
            f"the lowering to an operator that returns new tensors (`{operator.removesuffix('_')}_` without one is served by it), or none: "
            f"then the kernel is called as it is."
        )
    if name in lowerings():
        raise ValueError(f"surestep.lowering({operator!r}): {name} has a lowering already")

    def register(function: _Function) -> _Function:
        every = frozenset(argument.name for argument in overload._schema.arguments)
        lowerings()[name] = Lowering(lambda out, *args, **kwargs: function(*args, **kwargs), constants=every, custom=True)
        HANDLERS.clear()  # it, or what writes its result over an operand, may have been called before, and gone to the host
        return function

    return register


def _found(operator: str) -> torch._ops.OpOverload:
    namespace, separator, rest = operator.partition("::")
    packet_name, _, overload = rest.partition(".")
    if namespace == "aten":
        raise ValueError(f"surestep.lowering({operator!r}): {operator} is PyTorch's own, which surestep serves itself")
    if not separator or not packet_name:
        raise ValueError(f"surestep.lowering({operator!r}): write the operator as 'namespace::name', or 'namespace::name.overload'")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    if packet is None:
        raise ValueError(
            f"surestep.lowering({operator!r}): there is no operator {namespace}::{packet_name}. Define it first, with "
            f"torch.library.custom_op or torch.library.define"
        )
    names = packet.overloads()
    wanted = overload or (names[0] if len(names) == 1 else "default")
    if wanted not in names:
        raise ValueError(f"surestep.lowering({operator!r}): {namespace}::{packet_name} has the overloads {', '.join(names)}: name one")
    return getattr(packet, wanted)


def on_meta(operation: Operation, args: tuple, kwargs: dict, by_lowering: Callable[[], Any]) -> tuple[Any, Stand]:
    """What a custom operator gives, on `meta`: by its fake kernel, or else by its lowering. And the stand-ins of its operands."""
    stand = Stand("meta")
    if operation.targets:  # what they are is what they were
        return None, stand
    if _compat.has_fake_kernel(operation.overload):
        return stand.run(operation.overload, args, kwargs), stand
    return by_lowering(), stand


def by_lowering(operation: Operation, arguments: Any, keywords: dict[str, Any], figures: dict[Any, tuple]) -> Any:
    """Tensors on `meta` as the lowering's results are."""
    from surestep.lower.body import results  # JAX is imported when it is first needed

    found = results(name_of(operation.overload), arguments, keywords, figures)
    made = [torch.empty(shape, dtype=dtypes.to_torch(dtype), device="meta") for shape, dtype in found]
    return made[0] if operation.single else made
