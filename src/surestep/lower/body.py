"""One operation's lowering, traced for operands of given figures.

It is traced when the operation is recorded for the first time, not when the program is built: what a lowering can't do is known at the
user's line, where the host can still serve, and the layers of a model that repeat an operation share one trace of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from surestep.execute import dtypes
from surestep.execute.interrupts import apart
from surestep.lower.spec import Out
from surestep.lower.table import NotLowered, lowerings
from surestep.trace.layout import Layout
from surestep.trace.operands import LIFTED_FLOAT, LIFTED_INT, HostScalar, Ref, add_constant

_bodies: dict[tuple, Any] = {}
_LIMIT = 5_000  # kept beside those of the traces that are known: tens of kilobytes each


def body(
    name: str,
    arguments: Any,
    keywords: dict[str, Any],
    figures: dict[Ref, tuple],
    outputs: tuple[Layout | None, ...],
    single: bool,
    computed: tuple[torch.dtype | None, ...] | None,
) -> Any:
    """The lowering of ``name`` as a jaxpr. ``figures`` are the (sizes, dtype) of the SSA operands. Raises ``NotLowered``.

    ``computed`` are the dtypes in which a write's results are computed, before they are cast to its targets'; None where nothing is cast.
    """
    key: list[Any] = [name, tuple(None if out is None else (out.sizes, out.dtype) for out in outputs), computed]
    dynamic: list[jax.ShapeDtypeStruct] = []
    _add(arguments, key, dynamic, figures)
    for keyword, value in keywords.items():
        key.append(keyword)
        _add(value, key, dynamic, figures)
    exact = tuple(key)
    found = _bodies.get(exact)
    if found is None:
        if len(_bodies) >= _LIMIT:
            del _bodies[next(iter(_bodies))]
        found = _bodies[exact] = apart(lambda: _traced(name, arguments, keywords, dynamic, outputs, single, computed))
    return found


def results(name: str, arguments: Any, keywords: dict[str, Any], figures: dict[Ref, tuple]) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of what a lowering gives that isn't told: a custom one."""
    dynamic: list[jax.ShapeDtypeStruct] = []
    _add([arguments, *keywords.values()], [], dynamic, figures)

    def run(*operands: Any) -> Any:
        given = iter(operands)
        args = [_load(a, given) for a in arguments]
        return lowerings()[name].function(None, *args, **{keyword: _load(value, given) for keyword, value in keywords.items()})

    def traced() -> Any:
        with jax.enable_x64(True):
            return jax.eval_shape(run, *dynamic)

    found = apart(traced)
    return [(tuple(one.shape), one.dtype) for one in (found if isinstance(found, (list, tuple)) else [found])]


def traced(function: Any, arguments: list[Any], figures: dict[Ref, tuple]) -> Any:
    """A function over the arrays of such arguments, nested in lists as they are, as a jaxpr over them in their order."""
    dynamic: list[jax.ShapeDtypeStruct] = []
    _add(arguments, [], dynamic, figures)

    def run(*operands: Any) -> Any:
        given = iter(operands)
        return function(*[_load(argument, given) for argument in arguments])

    def made() -> Any:
        with jax.enable_x64(True):
            return jax.make_jaxpr(run)(*dynamic)

    return apart(made)


def _add(value: Any, key: list[Any], dynamic: list[jax.ShapeDtypeStruct], figures: dict[Ref, tuple]) -> None:
    if isinstance(value, (list, tuple)):
        key.append(("list", len(value)))
        for item in value:
            _add(item, key, dynamic, figures)
    elif isinstance(value, Ref):
        sizes, dtype = figures[value]
        key.append((sizes, dtype))
        dynamic.append(jax.ShapeDtypeStruct(tuple(sizes), dtypes.to_jax(dtype)))
    elif value is LIFTED_FLOAT or value is LIFTED_INT:
        key.append(value)
        dynamic.append(jax.ShapeDtypeStruct((), np.float64 if value is LIFTED_FLOAT else np.int64))
    elif isinstance(value, HostScalar):
        key.append(value)
        dynamic.append(jax.ShapeDtypeStruct((), dtypes.to_jax(value.dtype)))
    else:
        add_constant(key, value)


def _traced(
    name: str,
    arguments: Any,
    keywords: dict[str, Any],
    dynamic: list,
    outputs: tuple[Layout | None, ...],
    single: bool,
    computed: tuple[torch.dtype | None, ...] | None,
) -> Any:
    entry = lowerings()[name]
    outs = tuple(None if out is None else Out(tuple(out.sizes), dtypes.to_jax(out.dtype)) for out in outputs)
    told = outs
    if computed is not None:
        told = tuple(None if o is None or c is None else Out(o.shape, dtypes.to_jax(c)) for o, c in zip(outs, computed, strict=True))

    def run(*operands: Any) -> list[Any]:
        given = iter(operands)
        args = [_load(a, given) for a in arguments]
        kwargs = {keyword: _load(value, given) for keyword, value in keywords.items()}
        if entry.random:
            kwargs["key"] = next(given)
        result = entry.function(told[0] if single else told, *args, **kwargs)
        results = [result] if single else list(result)
        return [_checked(name, value, out, computed is not None) for value, out in zip(results, outs, strict=True) if out is not None]

    key = [jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))] if entry.random else []
    try:
        with jax.enable_x64(True):
            return jax.make_jaxpr(run)(*dynamic, *key)
    except Exception as error:  # whatever it is that a lowering can't do, the host can serve
        if entry.custom:
            raise
        raise NotLowered(f"{name}: {error}") from error


def _load(value: Any, given: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_load(item, given) for item in value]
    if isinstance(value, (Ref, HostScalar)) or value is LIFTED_FLOAT or value is LIFTED_INT:
        return next(given)
    return value


def _checked(name: str, result: Any, out: Out, cast: bool) -> Any:
    """The result, which must have PyTorch's shape and dtype: a wrong lowering is an error, never a wrong number."""
    if cast and result.dtype != out.dtype:
        result = result.real if jnp.iscomplexobj(result) and not jnp.issubdtype(out.dtype, jnp.complexfloating) else result
        result = result.astype(out.dtype)
    if cast and result.shape != out.shape:
        result = jnp.broadcast_to(result, out.shape)
    if result.shape != out.shape or result.dtype != out.dtype:
        raise TypeError(f"the lowering of {name} gave {result.dtype}{list(result.shape)} where PyTorch has {out.dtype}{list(out.shape)}")
    return result
