"""A case: one call of PyTorch, to be made in several places (CPU, xla, CPU in float64) and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
# Whose gradients are compared.
GRADIENTS = {torch.float32, torch.float64, torch.complex64, torch.complex128}
WAYS = ("forward", "backward", "in-place", "out", "noncontiguous", "errors", "state_dict", "steps")
# Dtypes with a wider one of their kind, in which the truth is nearer.
WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128,
}  # fmt: skip


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class Case:
    """``call(place)`` gives the results by way: {"forward": ..., "backward": ...}. ``values`` names results that are not unique."""

    way: str
    dtype: str
    label: str
    call: Callable[[Place], dict[str, Any]]
    tolerance: tuple[float, float] | None = None
    values: Callable[[Any, Any], str | None] | None = None
    error: type[BaseException] | None = None  # what must be raised
    shapes_only: bool = False
    normwise: bool = False  # errors are small against the largest element, not against each
    ways: tuple[str, ...] = field(default=())

    def __post_init__(self):
        self.ways = self.ways or (self.way,)


class Place:
    """Where a case runs. ``take`` makes the operands there: new ones each time, so that no run sees what another wrote."""

    def __init__(self, device: str = "cpu", exact: bool = False, note: Callable[[str], None] = lambda way: None):
        self.device, self.exact, self.note = device, exact, note
        self.asked = False  # whether any operand says where it is: a factory may not

    def take(self, value: Any) -> Any:
        made: dict[int, Any] = {}  # a tensor that is there twice is one tensor there, too

        def leaf(value: Any) -> Any:
            if id(value) not in made:
                made[id(value)] = self._leaf(value)
            return made[id(value)]

        return tree_map(leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.asked = True
            return self._tensor(value)
        if isinstance(value, torch.device) or (type(value) is str and value == "cpu"):
            self.asked = True
            return torch.device(self.device)
        if self.exact and isinstance(value, torch.dtype):
            return WIDER.get(value, value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if plain.layout is not torch.strided or plain.is_quantized:
            return plain.to(self.device).requires_grad_(tensor.requires_grad)
        if plain.is_conj():
            return self._tensor(plain.conj()).conj().requires_grad_(tensor.requires_grad)
        moved = laid_out(plain.resolve_neg(), WIDER.get(plain.dtype, plain.dtype) if self.exact else plain.dtype, self.device)
        if type(tensor) is torch.nn.Parameter:
            return torch.nn.Parameter(moved, tensor.requires_grad)
        return moved.requires_grad_(tensor.requires_grad)


def laid_out(tensor: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A copy with the same strides, holes and repetitions: `.to` would make it dense."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.to(dtype).clone() if device == "cpu" else tensor.to(dtype).to(device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).to(dtype)
    return (flat.clone() if device == "cpu" else flat.to(device)).as_strided(tensor.shape, tensor.stride(), 0)


def snapshot(value: Any) -> Any:
    """The result itself, without its graph."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def gradients(place: Place, outputs: Any, inputs: Any) -> list[torch.Tensor | None]:
    """The inputs' gradients for cotangents that are the same everywhere, and not all alike: a sum would hide much."""
    place.note("backward")
    results = [r for r in tree_leaves(outputs) if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not results or not wanted:
        return []
    generator = torch.Generator().manual_seed(7)
    weights = []
    for r in results:
        kind = torch.complex128 if r.is_complex() else torch.float64
        # rounded to few bits: every dtype holds them exactly
        weight = torch.randn(r.shape, dtype=kind, generator=generator)
        weight = torch.view_as_complex((torch.view_as_real(weight) * 8).round() / 8) if r.is_complex() else (weight * 8).round() / 8
        weights.append(weight.to(r.dtype).to(place.device))
    return list(torch.autograd.grad(results, wanted, weights, allow_unused=True))
