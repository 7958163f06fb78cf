"""torch_xla.distributed.data_parallel: a training loop over this process's device, given to an object. Replicas are processes here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from surestep.torch_xla import _later
from surestep.torch_xla.core._machine import get_xla_supported_devices
from surestep.torch_xla.distributed.parallel_loader import ParallelLoader

__all__ = ["Context", "DataParallel"]


class Context:
    """What a loop keeps from one call to the next: attributes of its own."""

    def __init__(self, device: torch.device):
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """The attribute; if it isn't there, the default, or what that gives when it is called, which is kept."""
        if getattr(self, name, None) is None:
            setattr(self, name, defval() if callable(defval) else defval)
        return getattr(self, name)


class DataParallel:
    """Calls ``loop_fn(model, loader, device, context)`` with a copy of the model on the device.

    Args:
        network: A module, or a function that makes one.
        device_ids: This process's device, as ``xm.get_xla_supported_devices()`` gives it.
        batchdim: The dimension along which batches are counted.

    Raises:
        NotImplementedError: Several devices. ``torch_xla.launch`` runs one process for each.
    """

    def __init__(
        self, network: torch.nn.Module | Callable[[], torch.nn.Module], device_ids: Sequence[Any] | None = None, batchdim: int = 0
    ):
        found = list(get_xla_supported_devices() or () if device_ids is None else device_ids)
        if len(found) != 1:
            raise NotImplementedError(
                f"DataParallel over {len(found)} devices: replicas are one process each. Call the loop in a function that "
                f"torch_xla.launch runs in each of them, with torch_xla.core.xla_model.optimizer_step, or DistributedDataParallel"
            )
        module = network if isinstance(network, torch.nn.Module) else network()
        self.devices = found
        self.models = [copy.deepcopy(module).to(torch.device(found[0]))]
        self._batchdim = batchdim
        self._context = Context(torch.device(found[0]))

    def __call__(self, loop_fn: Callable[..., Any], loader: Iterable[Any], fixed_batch_size: bool = False) -> list[Any]:
        """What the loop returns, in a list; a loader whose batches come on the device, each after a boundary, is what it is given.

        With ``fixed_batch_size`` it ends before the first batch of another size.
        """
        device = self._context.device
        given = _of_one_size(loader, self._batchdim) if fixed_batch_size else loader
        batches = ParallelLoader(given, self.devices, batchdim=self._batchdim)
        try:
            return [loop_fn(self.models[0], batches.per_device_loader(device), device, self._context)]
        finally:
            batches.close()


def _of_one_size(loader: Iterable[Any], dim: int) -> Iterator[Any]:
    first = None
    for batch in loader:
        sizes = {leaf.shape[dim] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
        if sizes != (first or sizes):
            return
        first = sizes
        yield batch


__getattr__ = _later.getter("torch_xla.distributed.data_parallel")
