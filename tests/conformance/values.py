"""Results of which several are right: where elements are equal, any of their places is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# By entry: the positional argument that is the dimension, and where the places are among the results (None: the result itself).
PLACES = {
    "sort": (0, 1), "topk": (1, 1), "kthvalue": (1, 1), "median": (0, 1), "nanmedian": (0, 1), "mode": (0, 1),
    "argsort": (0, None), "argmax": (0, None), "argmin": (0, None), "max": (0, 1), "min": (0, 1),
}  # fmt: skip


def judge_for(name: str, sample: Any) -> Callable[[Any, Any], str | None] | None:
    if name not in PLACES or not isinstance(sample.input, torch.Tensor):
        return None
    position, places = PLACES[name]
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else None)
    x = sample.input.detach()
    if not isinstance(dim, (int, type(None))):
        return None
    if dim is None and name in ("sort", "topk", "kthvalue", "mode", "argsort"):
        dim = -1
    return lambda theirs, ours: by_values(x, dim, places, theirs, ours)


def by_values(x: torch.Tensor, dim: int | None, places: int | None, theirs: Any, ours: Any) -> str | None:
    """The values must be the same to the bit, and the places must hold the same values, each place once."""
    left, right = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (theirs, ours))
    if len(left) != len(right):
        return f"{len(right)} results instead of {len(left)}"
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        mine = b.detach().cpu()
        whole = len(left) == 1 and places == 1
        if whole or position != (places or 0):
            try:
                torch.testing.assert_close(mine, a.detach(), rtol=0, atol=0, equal_nan=True, check_stride=False)
            except AssertionError as error:
                return " ".join(str(error).split())[:300]
            continue
        found = _places(x, dim, a, mine)
        if found:
            return found
    return None


def _places(x: torch.Tensor, dim: int | None, theirs: torch.Tensor, mine: torch.Tensor) -> str | None:
    if torch.equal(theirs, mine):
        return None
    if dim is None:
        x, dim = x.reshape(-1), 0
        theirs, mine = theirs.reshape(()), mine.reshape(())
    if x.ndim == 0:
        return None if not mine.any() else "a place outside of a scalar"
    if mine.ndim < x.ndim:
        theirs, mine = theirs.unsqueeze(dim), mine.unsqueeze(dim)
    if mine.ndim != x.ndim:
        return "the places have another shape"
    a, b = x.gather(dim, theirs), x.gather(dim, mine)
    same = (a == b) | (a.isnan() & b.isnan())
    if not same.all():
        return "a place holds another value"
    ordered = mine.sort(dim)[0]
    return "a place is there twice" if (ordered.diff(dim=dim) == 0).any() else None
