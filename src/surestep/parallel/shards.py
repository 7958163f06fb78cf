"""How tensors are cut into equal parts, one for each process of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Cut(NamedTuple):
    """A cut through the elements of some tensors, one after the other; or along the rows of one. Zeros make the parts equal.

    Args:
        shapes: The tensors'.
        count: How many parts there are.
        multiple: Of which the size of a part is a multiple: of so many elements, or rows.
        rows: Whether rows are cut, so that a part looks like the tensor, with fewer rows.
    """

    shapes: tuple[torch.Size, ...]
    count: int
    multiple: int = 1
    rows: bool = False

    def padded(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensors in one, with zeros at its end: ``[count * part, ...]``. What a reduce-scatter takes."""
        if self.rows and self.shapes[0]:
            (laid,) = tensors
        else:
            laid = torch.cat([tensor.reshape(-1) for tensor in tensors])
        missing = -laid.shape[0] % (self.count * self.multiple)
        return F.pad(laid, [0, 0] * (laid.ndim - 1) + [0, missing]) if missing else laid

    def part(self, tensors: Sequence[torch.Tensor], position: int) -> torch.Tensor:
        """One part, as a tensor of its own."""
        return self.padded(tensors).chunk(self.count)[position].clone()

    def wholes(self, padded: torch.Tensor) -> list[torch.Tensor]:
        """The tensors, as views of what an all-gather gives."""
        if self.rows and self.shapes[0]:
            return [padded.narrow(0, 0, self.shapes[0][0])]
        counts = [math.prod(shape) for shape in self.shapes]
        *pieces, _ = padded.split([*counts, len(padded) - sum(counts)])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
