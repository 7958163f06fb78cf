"""All lowerings, by the name of the ATen overload. The families are listed here; the table is built once, on first use."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surestep.lower.spec import Lowering

FAMILIES = (
    # elementwise and reductions
    "pointwise",
    "elementary",
    "conversion",
    "activation",
    "reduction",
    "cumulative",
    "loss",
    "ctc",
    "search",
    "random",
    # structured
    "creation",
    "shape",
    "padding",
    "indexing",
    "matmul",
    "grouped",
    "convolution",
    "pooling",
    "fractional",
    "normalization",
    "embedding",
    "embeddingbag",
    "interpolation",
    "gridsample",
    "distance",
    "attention",
    "linalg",
    "complex",
    "fft",
    # not PyTorch's: what optimizers do
    "update",
)


class NotLowered(Exception):
    """A lowering refuses its operands, or gives something else than PyTorch would; the cause tells."""


@functools.cache
def lowerings() -> dict[str, Lowering]:
    """``{"add.Tensor": Lowering(...)}`` for all families; ``ValueError`` where two families claim one overload."""
    table: dict[str, Lowering] = {}
    for family in FAMILIES:
        entries = importlib.import_module(f"surestep.lower.{family}").TABLE
        twice = table.keys() & entries.keys()
        if twice:
            raise ValueError(f"lowered twice: {sorted(twice)} (second time in surestep.lower.{family})")
        table.update(entries)
    return table
