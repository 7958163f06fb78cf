"""Views: another layout over the same storage. Nothing is recorded until somebody reads one."""

from __future__ import annotations

from typing import Any

import torch

from surestep import _compat
from surestep.tensor.infer import on_meta
from surestep.tensor.xla_tensor import XlaTensor, alias, put_back_hooks, refresh
from surestep.trace.layout import Layout, of_tensor
from surestep.trace.operands import add_constant

_LIMIT = 10_000  # known views an operation; some 4 MB


def handler(func: torch._ops.OpOverload) -> Any:
    """``view``, ``select``, ``t``, ``split``...: new tensors over the storage of the first argument."""
    known: dict[Any, Any] = {}  # a Layout, or a tuple of them
    as_strided = func is _AS_STRIDED  # whether it fits depends on the storage, which the layout doesn't tell

    def view(args: tuple, kwargs: dict) -> Any:
        base = args[0]
        if base._storage.hooks is not None:
            put_back_hooks(base)
        exact = base._layout if len(args) == 1 and not kwargs else _key(base._layout, args, kwargs)
        found = known.get(exact)
        if found is None or as_strided:
            found = _inferred(func, args, kwargs)
            if len(known) >= _LIMIT:
                known.clear()
            known[exact] = found
        if type(found) is Layout:
            return alias(base._storage, found, base)
        return [alias(base._storage, each, base) for each in found]

    return view


def _key(layout: Layout, args: tuple, kwargs: dict) -> tuple:
    key: list[Any] = [layout]
    for a in args[1:]:
        add_constant(key, a)
    for name, a in kwargs.items():
        key.append(name)
        add_constant(key, a)
    return tuple(key)


_AS_STRIDED = torch.ops.aten.as_strided.default


def _inferred(func: Any, args: tuple, kwargs: dict) -> Any:
    """The view's layout; a tuple of them where the operation returns several tensors."""
    result, _ = on_meta(func, args, kwargs)
    if isinstance(result, torch.Tensor):
        found = of_tensor(result)
        if func is _AS_STRIDED:
            storage = args[0]._storage
            available = storage.layout.numel * storage.layout.dtype.itemsize
            if found.span * found.dtype.itemsize > available:
                raise RuntimeError(
                    f"setStorage: sizes {list(found.sizes)}, strides {list(found.strides)}, storage offset {found.offset}, and itemsize "
                    f"{found.dtype.itemsize} requiring a storage size of {found.span * found.dtype.itemsize} are out of bounds for "
                    f"storage of size {available}"
                )
        return found
    return tuple(of_tensor(each) for each in result)


def in_place(func: torch._ops.OpOverload) -> Any:
    """``t_``, ``unsqueeze_``, ``as_strided_``...: the tensor itself lies otherwise from now on."""

    def change(args: tuple, kwargs: dict) -> XlaTensor:
        tensor = args[0]
        on_meta(func, args, kwargs)  # PyTorch's errors first, while nothing has changed
        _compat.change_metadata(func, tensor, *args[1:], *kwargs.values())
        refresh(tensor)
        return tensor

    return change


def detach(args: tuple, kwargs: dict) -> XlaTensor:
    """``detach`` and ``alias``: another tensor that lies as this one does."""
    tensor = args[0]
    return alias(tensor._storage, tensor._layout, tensor)


def physical(operation: Any) -> Any:
    """Handles a lazy view of PyTorch's CPU, such as the conjugate: it is computed, and lies as the operand does, holes too."""

    def handle(args: tuple, kwargs: dict) -> XlaTensor:
        (tensor,) = args
        layout = tensor._layout
        if layout.dense:
            return operation(tensor)
        memory = tensor.as_strided((layout.span - layout.offset,), (1,))
        return operation(memory).as_strided(tensor.shape, tensor.stride(), 0)

    return handle


def as_strided_copy(args: tuple, kwargs: dict) -> Any:
    """Its elements are the storage's, which the operand's own elements don't tell: so it is the view, copied."""
    return torch.as_strided(*args, **kwargs).clone(memory_format=torch.contiguous_format)


def as_strided_scatter(tensor: XlaTensor, source: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """The operand's storage, copied whole; the view of it, overwritten; what lies in it as the operand did."""
    whole = tensor.as_strided((tensor._storage.layout.numel,), (1,), 0).clone()
    result = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    result.as_strided(size, stride, storage_offset).copy_(source)
    return result
