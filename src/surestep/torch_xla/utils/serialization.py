"""torch_xla.utils.serialization: a checkpoint as one file of structure and a folder with a file for each tensor."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch

from surestep.loop.nested import replaced
from surestep.torch_xla.core._arena import ToXlaTensorArena

__all__ = ["TensorReference", "load", "save"]


class TensorReference:
    """Stands in the structure for the tensor in the file ``tensor_<tid>.pt``."""

    def __init__(self, tid: int):
        self.tid = tid


def _folder(path: str) -> str:
    return f"{path}.tensors"


def _file(path: str, tid: int) -> str:
    return os.path.join(_folder(path), f"tensor_{tid}.pt")


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Saves any nesting of Python objects: each tensor of the device in a file of its own, so that they never are in the host's memory
    together.

    Args:
        data: What to save.
        path: The file for the structure; the tensors are in the folder ``<path>.tensors``.
        master_only: Only the master ordinal writes. This process is one, so that it always does.
        global_master: With ``master_only``: only the first host's master writes.
    """
    shutil.rmtree(_folder(path), ignore_errors=True)
    os.makedirs(_folder(path))

    def written(tensors: list[torch.Tensor]) -> list[Any]:
        for tid, tensor in enumerate(tensors):
            torch.save(tensor.detach().cpu(), _file(path, tid))
        return [TensorReference(tid) for tid in range(len(tensors))]

    torch.save(ToXlaTensorArena(written, lambda tensor: tensor.device.type == "xla").transform(data), path)


def load(path: str) -> Any:
    """Loads what ``save`` wrote, its tensors on the CPU. The structure is unpickled: load only files that you trust."""
    read: dict[int, torch.Tensor] = {}

    def tensor(reference: TensorReference) -> torch.Tensor:
        if reference.tid not in read:
            read[reference.tid] = torch.load(_file(path, reference.tid))
        return read[reference.tid]

    return replaced(torch.load(path, weights_only=False), tensor, lambda value: isinstance(value, TensorReference))
