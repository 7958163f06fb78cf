"""What forward-mode differentiation asks of a device: tangents that lie as their primals do, and `linear` taken apart.

`linear` is one operation here (``linear``), of which PyTorch knows no derivative in forward mode. While a dual level is open it is written
in terms of others, as PyTorch does elsewhere. (``torch.func`` does so by itself.) The kernel that sees to it costs each call some
microseconds, so it is registered with the first tangent.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep import _compat
from surestep.tensor.infer import on_meta

_aten = torch.ops.aten
_kept: list[torch.library.Library] = []


def has_same_storage_numel(args: tuple, kwargs: dict) -> bool:
    """Whether a tangent lies over as much memory as its primal; PyTorch asks this of every tangent, and of nothing else."""
    if not _kept:
        _take_linear_apart()
    return on_meta(_aten._has_same_storage_numel.default, args, kwargs)[0]


def _take_linear_apart() -> None:
    usual = torch.library.get_kernel("aten::linear", "AutogradXLA")

    def linear(keyset: Any, *args: Any) -> torch.Tensor:
        if _compat.in_dual_level():
            return _compat.call_composite_kernel(_aten.linear.default, args, {})
        return usual.call_boxed(keyset, *args)

    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", linear, "AutogradXLA", with_keyset=True)
    _kept.append(library)


def zeros_like_primal(args: tuple, kwargs: dict) -> torch.Tensor:
    """``_new_zeros_with_same_feature_meta``: a tangent of zeros that lies as ``other`` does, once for each batch of ``tangent``."""
    tangent, other = args
    batches = tangent.shape[: kwargs.get("self_num_batch_dims", 0)]
    strides, step = list(other.stride()), 1 + sum((n - 1) * s for n, s in zip(other.shape, other.stride(), strict=True))
    for size in reversed(batches):
        strides.insert(0, step)
        step *= size
    return torch.empty_strided((*batches, *other.shape), strides, dtype=other.dtype, device=other.device).zero_()
