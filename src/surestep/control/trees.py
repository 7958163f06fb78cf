"""Nested Python objects whose leaves are tensors of one xla device, or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, keystr, tree_flatten_with_path, tree_unflatten

from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.recorder import Recorder


def described(value: Any) -> str:
    """A value in an error's words; a stand-in can't be printed."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor on {value.device} ({str(value.dtype).removeprefix('torch.')}{list(value.shape)})"


class Tree:
    """A structure, and its tensors in order."""

    def __init__(self, name: str, what: str, value: Any):
        pairs, self.spec = tree_flatten_with_path(value)
        self.tensors: list[XlaTensor] = []
        self.paths: list[str] = []
        self.nones: list[bool] = []
        for path, leaf in pairs:
            self.nones.append(leaf is None)
            if leaf is None:
                continue
            self.paths.append(f"{what}{keystr(path)}")
            if not isinstance(leaf, XlaTensor):
                raise TypeError(f"{name}: {self.paths[-1]} is {described(leaf)}; it must be a tensor on the xla device")
            self.tensors.append(leaf)

    @property
    def structure(self) -> tuple[TreeSpec, tuple[bool, ...]]:
        """Equal for equal structures."""
        return self.spec, tuple(self.nones)

    def rebuilt(self, tensors: Sequence[Any]) -> Any:
        """The same structure of other tensors."""
        return rebuilt(self.structure, tensors)

    def __str__(self) -> str:
        return str(tree_unflatten([None if none else "tensor" for none in self.nones], self.spec))


def rebuilt(structure: tuple[TreeSpec, tuple[bool, ...]], tensors: Sequence[Any]) -> Any:
    """A structure of these tensors."""
    spec, nones = structure
    waiting = iter(tensors)
    return tree_unflatten([None if none else next(waiting) for none in nones], spec)


def recorder_of(name: str, *trees: Tree) -> Recorder:
    """The recorder of the tensors' device. ``RuntimeError`` where they are on several."""
    found = {id(tensor._storage.trace): tensor for tree in trees for tensor in tree.tensors}
    if len(found) > 1:
        devices = sorted(str(tensor.device) for tensor in found.values())
        raise RuntimeError(f"{name}: tensors on {' and '.join(devices)}; they must be on one device")
    return next(iter(found.values()))._storage.trace
