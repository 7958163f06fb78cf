"""torch_xla.core.functions (`xf`): collectives that autograd goes through."""

from __future__ import annotations

import torch

from surestep.execute.world import replica
from surestep.torch_xla import _later
from surestep.torch_xla.core._gradients import all_gather
from surestep.torch_xla.core._gradients import all_reduce as _all_reduce

__all__ = ["all_gather", "all_reduce", "distributed_mm"]


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: list[list[int]] | None = None) -> torch.Tensor:
    """The reduction over all replicas, times ``scale``, as a new tensor."""
    return _all_reduce(reduce_type, value, scale, groups)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """The product with a weight whose columns are sharded over the replicas, ``w``: ``[N, K]`` of ``[N, K * replicas]``.

    Each replica has its own ``x``: ``[K * replicas, M]``, and gets its product; ``split`` computes it in so many parts, with less memory.
    """
    place = replica()
    columns = []
    for part in torch.tensor_split(x, split, dim=1):
        everybody = all_gather(part, 1).narrow(0, place.rank * w.shape[1], w.shape[1])
        columns.append(_all_reduce("sum", w @ everybody).narrow(1, place.rank * part.shape[1], part.shape[1]))
    return torch.cat(columns, 1)


__getattr__ = _later.getter("torch_xla.core.functions")
