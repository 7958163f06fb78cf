"""Tensors whose contents change places: ``torch.utils.swap_tensors``, by which ``module.to('xla')`` moves parameters that others hold."""

from __future__ import annotations

from surestep import _compat

count = 0  # of swaps so far: what was taken from a tensor before the last one may be another's now


def watch() -> None:
    """Counts them from now on."""
    _compat.around_swaps(_counted)


def _counted() -> None:
    global count
    count += 1
