"""Whether two results are the same. A judgement is None, or says what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from conformance.tolerance import defaults

# One family: PyTorch itself raises now one, now the other for the same mistake on different devices.
FAMILY = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)

NORMWISE_EPS = 100


def same_family(theirs: BaseException | type, ours: BaseException) -> bool:
    kind = theirs if isinstance(theirs, type) else type(theirs)
    if isinstance(ours, kind) or issubclass(kind, type(ours)):
        return True
    return issubclass(kind, FAMILY) and isinstance(ours, FAMILY)


def differs(
    theirs: Any,
    ours: Any,
    tolerance: tuple[float, float] | None,
    exact: Callable[[], Any],
    shapes_only: bool = False,
    normwise: bool = False,
) -> str | None:
    """Compares all leaves; ``exact()`` gives the same leaves in float64, and is asked only where there is a difference."""
    left, right = tree_leaves(theirs), tree_leaves(ours)
    if len(left) != len(right):
        return f"{len(right)} results instead of {len(left)}"
    for place, (a, b) in enumerate(zip(left, right, strict=True)):
        found = _leaf(a, b, tolerance, lambda place=place: _at(exact(), place), shapes_only, normwise)
        if found:
            return f"result {place}: {found}" if len(left) > 1 else found
    return None


def _at(results: Any, place: int) -> Any:
    """A leaf of the results in float64, where they could be had."""
    leaves = tree_leaves(results)
    return leaves[place] if place < len(leaves) else None


def _leaf(a: Any, b: Any, tolerance: Any, exact: Callable[[], Any], shapes_only: bool, normwise: bool = False) -> str | None:
    if not isinstance(a, torch.Tensor):
        if shapes_only or a is b or a == b or isinstance(a, torch.device):
            return None
        if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
            return _leaf(torch.tensor(a), torch.tensor(b), tolerance, exact, False)
        return f"{b!r} instead of {a!r}"[:200]
    if not isinstance(b, torch.Tensor):
        return f"{type(b).__name__} instead of a tensor"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
    if shapes_only:
        return None
    mine, truth = b.detach().cpu().resolve_conj().resolve_neg(), a.detach().resolve_conj().resolve_neg()
    tolerance = widest(tolerance, defaults(a.dtype))
    try:
        torch.testing.assert_close(
            mine, truth, equal_nan=True, check_stride=False, check_device=False, rtol=tolerance[0], atol=tolerance[1]
        )
        return None
    except AssertionError as error:
        if mine.is_floating_point() or mine.is_complex():
            best = exact()
            if isinstance(best, torch.Tensor) and best.shape == mine.shape and nearer(mine, truth, best.detach(), tolerance, normwise):
                return None
        return " ".join(str(error).split())[:300]


def widest(tolerance: tuple[float, float] | None, other: tuple[float, float]) -> tuple[float, float]:
    """The entry's tolerance is that of its operands' dtype; a result of another dtype has at least its own."""
    return other if tolerance is None else (max(tolerance[0], other[0]), max(tolerance[1], other[1]))


def nearer(mine: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, tolerance: tuple[float, float], normwise: bool = False) -> bool:
    """Whether ours is right by itself, or nowhere farther from the truth than the CPU's worst element of the same size is."""
    exact = exact.resolve_conj().resolve_neg()
    if exact.dtype == mine.dtype:
        return False
    rtol, atol = tolerance
    limit = torch.finfo(mine.dtype).max
    wide, before = exact.dtype, mine.dtype
    mine, theirs = mine.to(wide), theirs.to(wide)
    ok = (mine == exact) | (mine.isnan() & (exact.isnan() | theirs.isnan()))
    ok |= mine.isinf() & ((exact.abs() > limit) | (theirs == mine) | exact.isnan())
    ours_off, theirs_off = (mine - exact).abs(), (theirs - exact).abs()
    ok |= ours_off <= atol + rtol * exact.abs()
    ok |= ours_off <= theirs_off
    finite = theirs_off[theirs_off.isfinite()]
    if finite.numel():
        ok |= ours_off <= finite.max()
    if normwise:
        sizes = exact.abs()
        ok |= ours_off <= NORMWISE_EPS * torch.finfo(before).eps * sizes[sizes.isfinite()].amax().item() if sizes.isfinite().any() else ok
    return bool(ok.all())


def moved_strides(a: Any, b: Any) -> bool:
    """Whether two tensors' strides differ where it can be seen."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or not a.numel():
        return False
    return any(size > 1 and x != y for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True))
