"""Operations over lists of tensors (``torch._foreach_*``): the same operation, tensor by tensor, in one trace."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor.operation import name_of

_aten = torch.ops.aten


def handler(func: torch._ops.OpOverload) -> Any:
    """The loop for a foreach operation; None where there is no operation for one tensor."""
    packet, _, overload = name_of(func).partition(".")
    single = getattr(_aten, packet.removeprefix("_foreach_"), None)
    if single is None and packet.endswith("_") :
        single = getattr(_aten, packet.removeprefix("_foreach_"), None)
    if packet in ("_foreach_norm", "_foreach_max"):
        single = {"_foreach_norm": _aten.linalg_vector_norm, "_foreach_max": _aten.max}[packet]
    if single is None:
        return None
    arguments = func._schema.arguments
    listed = {
        argument.name: position for position, argument in enumerate(arguments) if str(argument.type).startswith(("List", "Optional[List"))
    }

    def run(args: tuple, kwargs: dict) -> Any:
        count = len(args[0])
        given = dict(zip((a.name for a in arguments), args, strict=False))
        given.update(kwargs)
        results = [
            single(*_positional(given, listed, item), **_named(given, arguments, listed, item)) for item in range(count)
        ]
        return results if func._schema.returns else None

    def _positional(values: dict, lists: dict, item: int) -> list[Any]:
        found = []
        for argument in arguments:
            if argument.kwarg_only or argument.name not in values:
                continue
            value = values[argument.name]
            is_list = argument.name in lists or (isinstance(value, torch.Tensor) and argument.name == "scalars")
            found.append(value[item] if is_list else value)
        return found

    def _named(values: dict, schema: Any, lists: dict, item: int) -> dict[str, Any]:
        return {a.name: values[a.name][item] if a.name in lists else values[a.name] for a in schema if a.kwarg_only and a.name in values}

    return run
