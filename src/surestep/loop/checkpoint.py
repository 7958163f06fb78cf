"""Saving: tensors are moved to the CPU first, so that any PyTorch loads the file. What shares memory goes on sharing it."""

from __future__ import annotations

from typing import Any

import torch

from surestep.execute.world import world
from surestep.loop.boundaries import sync
from surestep.loop.nested import is_tensor, replaced
from surestep.parallel import meeting
from surestep.tensor.xla_tensor import XlaTensor


def to_cpu(data: Any) -> Any:
    """The same nesting of Python objects with all xla tensors on the CPU. Tied weights stay tied, views stay views of one memory."""
    sync()
    storages: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "xla":
            return tensor
        part = _part(tensor, storages)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(part, tensor.requires_grad)
        return part.requires_grad_(tensor.requires_grad)

    return replaced(data, convert)


def _check_whole(tensor: torch.Tensor) -> torch.Tensor:
    if getattr(tensor, "_is_sharded", False):
        raise RuntimeError(
            "xm.save of a sharded state_dict by the master alone: it has a part only. Write a file on each process, with "
            "master_only=False and the ordinal in its name; consolidate_sharded_model_checkpoints makes one of them"
        )
    return tensor


def _part(tensor: torch.Tensor, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    """The tensor as a view of its whole storage's copy on the CPU, which is made once."""
    if type(tensor) is not XlaTensor:
        return tensor.detach().cpu()
    whole = tensor._storage.layout
    if whole.dtype is not tensor.dtype or not whole.dense:
        return tensor.detach().cpu()
    key = id(tensor._storage)
    if key not in storages:
        storages[key] = torch.as_strided(tensor.detach(), (whole.numel,), (1,), 0).cpu()
    return storages[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Saves any nesting of Python objects with ``torch.save``, its tensors on the CPU.

    Args:
        data: What to save: a ``state_dict()``, or any nesting of Python objects.
        file_or_path: A path or a file object.
        master_only: Only the master ordinal writes.
        global_master: With ``master_only``: only the first host's master writes, instead of each host's.

    All processes must call it, since moving the tensors makes a boundary; it returns when the file is there.

    Raises:
        RuntimeError: Only the master would write what is sharded, and so a part of it.
    """
    place = world()
    if master_only and place.size > 1:
        replaced(data, _check_whole, is_tensor)
    on_cpu = to_cpu(data)
    if not master_only or (place.rank if global_master else place.local_rank) == 0:
        torch.save(on_cpu, file_or_path)
    if place.size > 1:
        meeting.exchange("save", b"", tuple(range(place.size)))
