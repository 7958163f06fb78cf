"""Saving, loading and deep copies.

A saved xla tensor is an ordinary PyTorch one on a storage tagged ``xla:0``: what shares a storage still shares it when it is loaded,
``weights_only=True`` accepts it, and ``map_location`` brings it to any device, also where surestep isn't installed.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any, cast

import torch

from surestep.tensor import metadata
from surestep.tensor.xla_tensor import XlaTensor, alias, fresh


def reduce(tensor: XlaTensor, protocol: Any) -> tuple:
    """What ``pickle`` and ``torch.save`` ask for."""
    required = tensor.requires_grad
    if required and not tensor.is_leaf:
        tensor = cast("XlaTensor", tensor.detach())
    layout, state = tensor._layout, _attributes(tensor)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    # With attributes PyTorch gives an alias of what is rebuilt, which is a leaf only if that doesn't want a gradient yet.
    early = required and (is_parameter or not state)
    arguments = (_saved_storage(tensor), layout.offset, tuple(layout.sizes), layout.strides, early, OrderedDict())
    rebuilt: tuple = (torch._utils._rebuild_tensor_v2, arguments)
    if is_parameter:
        arguments = (_plain(rebuilt), required, OrderedDict())
        if not state:
            return torch._utils._rebuild_parameter, arguments
        return torch._utils._rebuild_parameter_with_state, (*arguments, state)
    if not state:
        return rebuilt
    return torch._tensor._rebuild_from_type_v2, (
        *rebuilt[:1],
        torch.Tensor,
        rebuilt[1],
        state | ({"requires_grad": True} if required else {}),
    )


def _attributes(tensor: XlaTensor) -> dict[str, Any]:
    """What the user has set on a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN}


class _SavedStorage(torch.storage.TypedStorage):
    """A storage object as ``torch.save`` takes it, which plain ``pickle`` can take too.

    PyTorch's own would read the address that ours hasn't.
    """

    def __new__(cls, *_: Any, **__: Any) -> _SavedStorage:
        return object.__new__(cls)

    def __init__(self, tensor: XlaTensor):
        super().__init__(wrap_storage=metadata.storage_handle(tensor), dtype=tensor.dtype, _internal=True)

    def __reduce__(self) -> tuple:
        values = torch.empty(0, dtype=self.dtype, device=self._untyped_storage.device).set_(self._untyped_storage).cpu()
        return _loaded_storage, (values, str(self._untyped_storage.device))


def _loaded_storage(values: torch.Tensor, device: str) -> torch.storage.TypedStorage:
    handle = metadata.loaded_handle(values.untyped_storage(), torch.device(device))
    return torch.storage.TypedStorage(wrap_storage=handle, dtype=values.dtype, _internal=True)


# One object a storage and dtype, so that a pickle holds what is shared once.
_saved: weakref.WeakKeyDictionary[Any, dict[tuple, _SavedStorage]] = weakref.WeakKeyDictionary()


def _saved_storage(tensor: XlaTensor) -> _SavedStorage:
    known = _saved.setdefault(tensor._storage, {})
    key = (tensor.dtype, tensor._storage.layout.numel)
    if key not in known:
        known[key] = _SavedStorage(tensor)
    return known[key]


_OWN = {"_storage", "_layout", "_read", "_lies", "_is_param"}


class _plain:
    """Pickles as the tensor that a (function, arguments) pair rebuilds."""

    def __init__(self, rebuilt: tuple):
        self.rebuilt = rebuilt

    def __reduce__(self) -> tuple:
        return self.rebuilt


def deep_copy(tensor: XlaTensor, memo: dict) -> torch.Tensor:
    """As ``Tensor.__deepcopy__``: tensors that share a storage share the copy's. A parameter's copy, as ``Parameter.__deepcopy__``'s, has
    values of its own, and neither the gradient nor attributes.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if isinstance(tensor, torch.nn.Parameter):
        copied = memo[id(tensor)] = torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
        return copied
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
            "see https://github.com/pytorch/pytorch/pull/103001"
        )
    import copy

    storage = tensor._storage
    with torch.no_grad():
        whole: XlaTensor | None = memo.get(("surestep", id(storage)))
        if whole is None:
            whole = memo["surestep", id(storage)] = cast("XlaTensor", torch.clone(fresh(storage)))
        copied = alias(whole._storage, tensor._layout, whole)
    if tensor.requires_grad:
        copied.requires_grad_()
    memo[id(tensor)] = copied
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    for name, value in _attributes(tensor).items():
        setattr(copied, name, copy.deepcopy(value, memo))
    return copied


def shallow_copy(tensor: XlaTensor) -> torch.Tensor:
    """As ``copy.copy`` of a tensor on the CPU: another leaf over the same memory, with the same attributes, and without the gradient."""
    copied = tensor.detach()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    else:
        copied.requires_grad_(tensor.requires_grad)
    for name, value in _attributes(tensor).items():
        setattr(copied, name, value)
    return copied


def tag(storage: Any) -> str | None:
    """The location that ``torch.save`` writes for our storages."""
    return str(storage.device) if storage.device.type == "xla" else None


def restore(storage: Any, location: str) -> Any:
    """What ``torch.load`` asks for a storage with our location: it goes to the device once its dtype is known."""
    if not location.startswith("xla"):
        return None
    return metadata.loaded_handle(storage, torch.device(location))
