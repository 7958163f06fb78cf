"""Values on the host: reading them, printing them, and running there what the device can't."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from surestep import _compat, settings
from surestep.execute import spmd, transfer
from surestep.observe import events, frames
from surestep.observe.events import Cause
from surestep.tensor import mixed
from surestep.tensor.devices import started
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout, memory_order
from surestep.trace.recorder import LOCK, in_parts

_aten = torch.ops.aten


class FallbackError(RuntimeError):
    """An operation would have run on the host, and ``SURESTEP_FALLBACK=error`` forbids it."""


def array_of(tensor: XlaTensor, cause: Cause) -> tuple[Any, Layout]:
    """The array of a tensor's elements, in the tensor's shape, and the (dense) layout in which its memory lies.

    Cuts the trace if the value is pending. The array may be the storage's own: don't keep it.
    """
    with LOCK:
        storage, view = tensor._storage, tensor._layout
        concrete(storage, cause)
        if view is storage.layout:
            return storage.array, view
        from surestep.tensor import record

        where = storage.trace
        part = record.Storage(where, record._dense(view.sizes, view.dtype))
        where.define(part, record.value_of(where, tensor))
        where.cut(cause)
        return part.array, part.layout


def concrete(storage: Any, cause: Cause) -> None:
    """Sees to it that the storage's value is an array."""
    if storage.array is None:
        where = storage.trace
        if storage.serial != where.serial:
            where.enter(storage)
        where.cut(cause)


def to_cpu(tensor: XlaTensor, cause: Cause = Cause.VALUE) -> torch.Tensor:
    """A CPU tensor of the same values, own memory, with the same strides where they are dense. Waits for the value."""
    storage, view = tensor._storage, tensor._layout
    if storage.trace.sealed is not None:
        storage.trace.sealed(cause)
    line = frames.user_line()
    with LOCK:
        concrete(storage, cause)
        array = storage.array
        if storage.trace.spread and in_parts(storage):
            raise RuntimeError(
                "a tensor between enable_manual_sharding and disable_manual_sharding has a value of its own on each device. Read what "
                "disable_manual_sharding gives"
            )
        if not (array.is_fully_addressable or array.is_fully_replicated):  # its parts are those of several processes
            storage.trace.meet(f"a read of a tensor of shape {list(view.sizes)}", line)
            array = spmd.spread(array, spmd.whole())
    start = time.perf_counter()
    whole = _waited(array, storage)
    events.emit("transfer_out", line, cause=cause, nbytes=view.numel * view.dtype.itemsize, seconds=time.perf_counter() - start)
    flat = (
        whole.permute(memory_order(storage.layout.sizes, storage.layout.strides)).reshape(-1)
        if not storage.layout.contiguous
        else whole.reshape(-1)
    )
    if view.dtype is not storage.layout.dtype:
        flat = flat.as_strided(flat.shape, (1,))  # of a single element NumPy may say any stride, which `view` refuses
        flat = flat[: flat.numel() * flat.element_size() // view.dtype.itemsize * view.dtype.itemsize // flat.element_size()].view(
            view.dtype
        )
    part = flat.as_strided(view.sizes, view.strides, view.offset)
    return part if view is storage.layout and view.contiguous else part.clone()


def _waited(array: Any, storage: Any) -> torch.Tensor:
    try:
        return transfer.to_host(array)
    except RuntimeError as error:
        if array.is_deleted():
            raise RuntimeError(storage.lost or "this tensor's memory was given to a program that failed") from error
        raise


def item(args: tuple, kwargs: dict) -> Any:
    """``tensor.item()``"""
    return to_cpu(args[0]).item()


def register() -> torch.library.Library:
    """``torch.tensor([a, b])`` reads tensors in C++ that passes by ``__torch_dispatch__``. The library must be kept alive."""
    library = torch.library.Library("aten", "IMPL", "XLA")
    library.impl("_local_scalar_dense", lambda tensor: to_cpu(tensor).item())
    return library


def equal(args: tuple, kwargs: dict) -> bool:
    """``torch.equal``: compared on the device, one value read."""
    a, b = args
    if a.shape != b.shape:
        return False
    return bool(torch.eq(a, b).all().item())


def representation(tensor: XlaTensor) -> str:
    """What PyTorch prints for any tensor. It reads the value: a counted boundary where that is pending."""
    text = repr(to_cpu(tensor, Cause.PRINT))
    parts = _SUFFIXES.fullmatch(text)
    assert parts is not None  # a tensor's text ends in a parenthesis, before which anything goes
    body, size, dtype = parts.groups("")
    suffix = f", device='{tensor.device}'{size}{dtype}"
    if tensor.grad_fn is not None:
        suffix += f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    elif tensor.requires_grad:
        suffix += ", requires_grad=True"
    text = f"{body}{suffix})"
    return f"Parameter containing:\n{text}" if isinstance(tensor, torch.nn.Parameter) else text


_SUFFIXES = re.compile(r"(.*?)(, size=\([^)]*\))?(, dtype=[\w.]+)?\)", re.DOTALL)


def fallback(func: torch._ops.OpOverload, cause: Cause = Cause.FALLBACK) -> Any:
    """Runs an operation on CPU copies, and brings the results back; counted, and said once a line."""

    def run(args: tuple, kwargs: dict) -> Any:
        if not any(isinstance(leaf, XlaTensor) for leaf in tree_leaves((args, kwargs))):
            return _on_cpu(func, args, kwargs, cause)  # a constant, such as `hamming_window`: nothing is read, nothing is cut
        mixed.check(func, args, kwargs)
        for recorder in started():
            if recorder.sealed is not None:
                recorder.sealed(cause)
        line = frames.user_line()
        if cause is Cause.FALLBACK and settings.value("SURESTEP_FALLBACK") == "error":
            raise FallbackError(
                f"{func} has no lowering and would run on the host ({line}); SURESTEP_FALLBACK=error forbids it. "
                f"Write it with other operations, move it out of the step, or unset the variable."
            )
        events.emit("fallback", line, operation=str(func), cause=cause)
        _say_once(func, line, cause)
        return _on_cpu(func, args, kwargs, cause)

    return run


_said: set[tuple[Any, Any]] = set()


def _say_once(func: Any, line: Any, cause: Cause) -> None:
    if (func, line) in _said or cause is not Cause.FALLBACK:
        return
    _said.add((func, line))
    warnings.warn(f"surestep: {func} has no lowering: it runs on the host at {line}, which cuts the step in two", stacklevel=4)


def _on_cpu(func: Any, args: tuple, kwargs: dict, cause: Cause) -> Any:
    from surestep.tensor.copies import copy_, upload
    from surestep.tensor.metadata import resize

    device: torch.device | None = None
    made: dict[int, tuple[XlaTensor, torch.Tensor]] = {}

    def down(value: Any) -> Any:
        nonlocal device
        if isinstance(value, XlaTensor):
            device = device or value.device
            if id(value) not in made:
                copy = to_cpu(value, cause)
                # the array's own memory can't be resized, nor may it be written
                made[id(value)] = (value, copy.clone() if func._schema.is_mutable else copy)
            return made[id(value)][1]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == "xla":
        device = kwargs["device"]
    host_args, host_kwargs = tree_map(down, (args, kwargs))
    with _compat.outside_of_dispatch():
        result = func(*host_args, **host_kwargs)
    ours = {id(theirs): mine for mine, theirs in made.values()}
    if func._schema.is_mutable:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            _write_back(argument, value, made, copy_, resize)
        for argument in func._schema.arguments:
            if argument.kwarg_only and argument.name in kwargs:
                _write_back(argument, kwargs[argument.name], made, copy_, resize)

    def up(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return ours[id(value)] if id(value) in ours else upload(value, device)

    return tree_map(up, result)


def _write_back(argument: Any, value: Any, made: dict, copy_: Any, resize: Any) -> None:
    if argument.alias_info is None or not argument.alias_info.is_write:
        return
    for target in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(target, XlaTensor):
            theirs = made[id(target)][1]
            if theirs.shape != target.shape:
                resize(target, tuple(theirs.shape), theirs.stride())
            copy_((target, theirs), {})


def nonzero_of(mask: XlaTensor) -> torch.Tensor:
    """The indices of a mask's true elements, on the CPU: how many there are must be read, which is counted, with the user's line."""
    events.emit("fallback", frames.user_line(), operation="aten.nonzero.default", cause=Cause.SHAPE)
    return to_cpu(mask, Cause.SHAPE).nonzero()
