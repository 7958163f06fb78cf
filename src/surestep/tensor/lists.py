"""Operations over lists of tensors (``torch._foreach_*``): the same operation, tensor by tensor, in one trace."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor.operation import name_of

_aten = torch.ops.aten
_OTHER_NAMES = {"norm": _aten.linalg_vector_norm, "powsum": None}
_BY_KEYWORD = {"addcmul": "value", "addcdiv": "value", "addcmul_": "value", "addcdiv_": "value"}  # the last of four

_WITH_NUMBERS = {"maximum": "clamp_min", "maximum_": "clamp_min_", "minimum": "clamp_max", "minimum_": "clamp_max_"}


def handler(func: torch._ops.OpOverload) -> Any:
    """The loop for a foreach operation; None where there is no operation for one tensor."""
    packet = name_of(func).partition(".")[0].removeprefix("_foreach_")
    if "Scalar" in func._overloadname:
        packet = _WITH_NUMBERS.get(packet, packet)
    single = _OTHER_NAMES.get(packet, getattr(_aten, packet, None))
    if single is None and packet.endswith("_"):
        single = _in_place(getattr(_aten, packet[:-1], None))  # `_foreach_maximum_`: `maximum` has no in-place form
    if single is None:
        return None
    keyword = _BY_KEYWORD.get(packet)

    def run(args: tuple, kwargs: dict) -> Any:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))
        results = []
        for item in range(count):
            given = [_item(a, item, position) for position, a in enumerate(args)]
            named = {name: _item(a, item, 1) for name, a in kwargs.items()}
            if keyword is not None and len(given) == 4:
                named[keyword] = given.pop()
                if isinstance(named[keyword], torch.Tensor):
                    named[keyword] = named[keyword].item()
            results.append(single(*given, **named))
        return results if func._schema.returns else None

    return run


def _in_place(functional: Any) -> Any:
    return None if functional is None else lambda x, *rest, **named: x.copy_(functional(x, *rest, **named))


def _item(a: Any, item: int, position: int) -> Any:
    """A list's element; what is no list serves all.

    A 1-d CPU tensor after the first operand is a list of numbers (``_foreach_addcdiv.Tensor``).
    """
    if isinstance(a, (list, tuple)):
        return a[item]
    if position and isinstance(a, torch.Tensor) and a.ndim == 1 and a.device.type == "cpu":
        return a[item].item()
    return a
