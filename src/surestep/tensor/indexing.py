"""Indexing with masks. Reading through one has a shape that depends on values: a counted read on the host. Writing through one has not,
and stays on the device.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import host, record
from surestep.tensor.copies import upload
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor

_aten = torch.ops.aten
_INDEX = record.handler(Operation(_aten.index.Tensor))
_INDEX_PUT = record.handler(Operation(_aten.index_put.default))
_INDEX_PUT_ = record.handler(Operation(_aten.index_put_.default))


def index(args: tuple, kwargs: dict) -> XlaTensor:
    """``x[indices]``: indices may be on the CPU, as in PyTorch."""
    tensor, indices = args
    return _INDEX((tensor, _as_numbers(tensor, indices)), {})


def index_put_(args: tuple, kwargs: dict) -> XlaTensor:
    """``x[indices] = values``: indices may be on the CPU; a mask with one value stays a mask, so nothing is read."""
    return _put(_INDEX_PUT_, args)


def index_put(args: tuple, kwargs: dict) -> XlaTensor:
    """The same as a new tensor."""
    return _put(_INDEX_PUT, args)


def _put(recorded: Any, args: tuple) -> XlaTensor:
    tensor, indices, values, *rest = args
    accumulate = bool(rest and rest[0])
    if not isinstance(values, XlaTensor):
        if values.ndim:
            return recorded((tensor, [], values), {})  # refuses the values
        values = upload(values, tensor.device)
    only_mask = len(indices) == 1 and _is_mask(indices[0])
    if only_mask and values.numel() == 1 and not accumulate:
        mask = indices[0] if isinstance(indices[0], XlaTensor) else upload(indices[0], tensor.device)
        return recorded((tensor, [mask.bool()], values), {})
    return recorded((tensor, _as_numbers(tensor, indices), values, accumulate), {})


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _as_numbers(tensor: XlaTensor, indices: Any) -> list[Any]:
    found: list[Any] = []
    for given in indices:
        if given is None:
            found.append(None)
        elif _is_mask(given):
            position = len(found)
            for dim, size in enumerate(given.shape):
                if tensor.shape[position + dim] != size:
                    raise IndexError(
                        f"The shape of the mask {list(given.shape)} at index {dim} does not match the shape of the indexed tensor "
                        f"{list(tensor.shape)} at index {position + dim}"
                    )
            rows = host.nonzero_of(given) if isinstance(given, XlaTensor) else given.nonzero()
            found += [upload(column.contiguous(), tensor.device) for column in rows.unbind(1)]
        else:
            if not isinstance(given, XlaTensor):
                _check(given, tensor, len(found))
                given = upload(given, tensor.device)
            found.append(given)
    return found


def _check(index: torch.Tensor, tensor: XlaTensor, dim: int) -> None:
    """An index known on the host is checked as PyTorch checks it."""
    if index.numel() == 0 or index.is_floating_point() or dim >= tensor.ndim:
        return
    size = tensor.shape[dim]
    for value in (int(index.min()), int(index.max())):
        if not -size <= value < size:
            raise IndexError(f"index {value} is out of bounds for dimension {dim} with size {size}")


def masked_select(args: tuple, kwargs: dict) -> XlaTensor:
    """``x[mask]`` after broadcasting; a counted read."""
    tensor, mask = torch.broadcast_tensors(*args)
    if not tensor.ndim:
        tensor, mask = tensor.reshape(1), mask.reshape(1)
    return index((tensor, [mask]), {})


def nonzero(args: tuple, kwargs: dict) -> XlaTensor:
    """The indices of the elements that are not zero: found on the host, a counted read, and brought back to the device."""
    return upload(host.nonzero_of(args[0]), args[0].device)
