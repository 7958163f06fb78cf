"""``torch.Generator(device="xla")`` in the process of `surestep run`: plain PyTorch asks torch_xla's C++ for it."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import generator

_Plain = torch.Generator


class _AsBefore(type(_Plain)):
    """Calls, ``isinstance`` and ``issubclass`` mean PyTorch's own class, but that it can be called for xla too."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        if cls is not torch.Generator:  # a script's own subclass
            return super().__call__(device)
        return generator.Generator(device) if torch.device(device).type == "xla" else _Plain(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Plain)


def install() -> None:
    """Puts the class in the place of PyTorch's own, which is C++ and can't be changed."""
    torch.Generator = _AsBefore("Generator", (_Plain,), {"__module__": "torch", "__doc__": _Plain.__doc__})  # type: ignore[misc]
