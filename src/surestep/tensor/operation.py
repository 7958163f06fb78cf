"""What surestep knows of an ATen overload: its functional form, what it overwrites, which numbers can be lifted, its lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from surestep.lower.table import lowerings

if TYPE_CHECKING:
    from surestep.lower.spec import Lowering

# Arguments that say where a result is made, not what it is: the layout of the result says it all.
FACTORY = frozenset({"device", "layout", "pin_memory", "non_blocking", "generator"})
NOT_LOWERED = FACTORY | {"dtype", "memory_format"}

# In-place operations whose functional form has another name.
_RENAMED = {
    "normal_.default": "normal_functional.default",
    "uniform_.default": "uniform.default",
    "bernoulli_.float": "bernoulli.p",
}
# A number may also stand where the schema has a tensor (`x * 2`): PyTorch wraps it, and unwraps it again before it arrives here.
_NUMBERS = {"number", "float", "Optional[number]", "Optional[float]", "Tensor", "Optional[Tensor]"}


class Operation:
    """One overload, with what recording it needs."""

    def __init__(self, overload: torch._ops.OpOverload):
        self.overload = overload
        schema = overload._schema
        self.functional = overload if not schema.is_mutable else functional_form(overload)
        self.lowering: Lowering | None = None if self.functional is None else lowerings().get(name_of(self.functional))
        self.random = self.lowering is not None and self.lowering.random
        # Positions and names of the arguments that are overwritten, in the order of the functional form's results. (Any: who reads them
        # asks `type(target) is str`, from which a type checker doesn't learn that the others are ints.)
        self.targets: list[Any] = [
            argument.name if argument.kwarg_only else position
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.in_place = self.targets == [0] and not any(argument.is_out for argument in schema.arguments)
        self.outs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
        constants = self.lowering.constants if self.lowering else ()
        self.numbers: dict[int | str, None] = {
            (argument.name if argument.kwarg_only else position): None
            for position, argument in enumerate(schema.arguments)
            if str(argument.type) in _NUMBERS and argument.name not in constants
        }
        self.single = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
        # where a generator comes as a positional argument, as a few operations have it
        self.generator = next((p for p, a in enumerate(schema.arguments) if a.name == "generator" and not a.kwarg_only), None)
        self.lists_in = any(str(argument.type) == "List[Tensor]" and argument.alias_info is not None for argument in schema.arguments)
        self.lists = any(str(result.type).startswith("List") for result in schema.returns)


def name_of(overload: torch._ops.OpOverload) -> str:
    """``add.Tensor``; other libraries' operations keep their namespace."""
    return str(overload).removeprefix("aten.")


def functional_form(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload that gives as a new tensor what this one writes, with the same arguments otherwise; None where PyTorch has none."""
    namespace, _, rest = str(overload).partition(".")
    operations = getattr(torch.ops, namespace)
    renamed = _RENAMED.get(rest)
    if renamed is not None:
        packet, _, name = renamed.partition(".")
        return getattr(getattr(operations, packet), name)
    packet, _, name = rest.partition(".")
    inputs = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
    if packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    found = getattr(operations, packet, None)
    if found is None:
        return None
    candidates = [getattr(found, candidate) for candidate in found.overloads()]
    candidates = [
        c
        for c in candidates
        if not c._schema.is_mutable
        and [(a.name, str(a.type)) for a in c._schema.arguments if a.name not in NOT_LOWERED]
        == [i for i in inputs if i[0] not in NOT_LOWERED]
    ]
    named = [c for c in candidates if c._overloadname == name]
    return (named or candidates or [None])[0]
