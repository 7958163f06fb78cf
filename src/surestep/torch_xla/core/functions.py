"""torch_xla.core.functions (`xf`): collectives that autograd goes through."""

from __future__ import annotations

import torch

from surestep.execute.world import replica
from surestep.parallel.batch_norm import moments, normalized
from surestep.parallel.collectives import Members
from surestep.torch_xla import _later
from surestep.torch_xla.core._gradients import all_gather
from surestep.torch_xla.core._gradients import all_reduce as _all_reduce

__all__ = ["SyncBatchNorm", "all_gather", "all_reduce", "distributed_mm"]


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


class SyncBatchNorm(torch.nn.Module):
    """Batch normalization by the mean and variance of all replicas' batches together, ``[N, C]`` to ``[N, C, D, H, W]``.

    As torch_xla's, its running variance is that of the batches, where ``torch.nn.SyncBatchNorm`` keeps the unbiased one.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The normalized batch; in evaluation by the running mean and variance."""
        if not 2 <= batch.ndim <= 5 or batch.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm({self.num_features}): a batch of shape [N, {self.num_features}, ...], not {list(batch.shape)}")
        if not self.training:
            return normalized(batch, self.running_mean, self.running_var, self)
        mean, variance, _ = moments(batch, Members())
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        return normalized(batch, mean, variance, self)

    def extra_repr(self) -> str:
        """What ``print(model)`` says of it."""
        return f"{self.num_features}, eps={self.eps}"


__getattr__ = _later.getter("torch_xla.core.functions")
