"""JAX functions as operators: recorded, and traced into the program around them, as any other operation is. Gradients are JAX's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from surestep.execute import dtypes
from surestep.tensor import custom
from surestep.tensor.xla_tensor import XlaTensor

_library = torch.library.Library("surestep_jax", "FRAGMENT")
_numbers = itertools.count()
_known: dict[Any, Operator] = {}  # for good, as PyTorch keeps operators


def call_jax(jax_func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, name: str | None = None) -> Any:
    """``jax_func(*args, **kwargs)``, with JAX arrays where there are tensors, in any nesting; gives tensors where it gives arrays.

    Define the function once, outside of the training loop: it is traced anew, and kept, where it is another object, or where a shape, a
    dtype or what is no tensor changes.

    Args:
        jax_func: A function that ``jax.jit`` could take.
        args: Tensors on the xla device, or values that can be hashed.
        kwargs: The same, by name.
        name: Accepted as torch_xla has it.

    Raises:
        TypeError: There is no tensor among the arguments, one isn't on the xla device, or another argument can't be hashed; or the function
            returns what is no array.
    """
    from jax.tree_util import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten((tuple(args), dict(kwargs or {})))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or not all(isinstance(tensor, XlaTensor) for tensor in tensors):
        where = sorted({str(tensor.device) for tensor in tensors})
        raise TypeError(f"call_jax takes tensors on the xla device, at least one, and was given tensors on {where or 'no device'}")
    given = tuple(None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves)
    key = (jax_func, structure, given, tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors))
    try:
        operator = _known.get(key)
    except TypeError:
        raise TypeError(
            f"call_jax: an argument of {jax_func} is no tensor, and can't be hashed, so that it can't be told when it changes"
        ) from None
    if operator is None:
        operator = _known[key] = _operator(*key)
    return tree_unflatten(operator.structure, _Call.apply(operator, *tensors))


Kinds = tuple[tuple[torch.dtype, tuple[int, ...]], ...]  # the dtypes and shapes of tensors


class Operator(NamedTuple):
    """A JAX function of arrays, which gives a list of them, as an operator."""

    function: Callable[..., list[Any]]
    call: Callable[..., Any]
    structure: Any  # of the results
    kinds: Kinds  # of the arguments
    derivative: list[Operator]  # one, once it was needed


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.operator = operator
        ctx.save_for_backward(*tensors)
        results = _called(operator, tensors)
        ctx.mark_non_differentiable(*(result for result in results if not _has_gradient(result.dtype)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[bad-override]
        operator = ctx.operator
        wanted = [grad for grad in grads if _has_gradient(grad.dtype)]
        if not operator.derivative:
            operator.derivative.append(_derivative(operator, tuple((grad.dtype, tuple(grad.shape)) for grad in wanted)))
        found = iter(_Call.apply(operator.derivative[0], *ctx.saved_tensors, *wanted))
        return (None, *(next(found) if _has_gradient(dtype) else None for dtype, _ in operator.kinds))


def _has_gradient(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _called(operator: Operator, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    results = operator.call(*tensors)
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _operator(jax_func: Callable[..., Any], structure: Any, given: tuple[Any, ...], kinds: Kinds) -> Operator:
    import jax

    def results(*arrays: Any) -> Any:
        waiting = iter(arrays)
        leaves = [next(waiting) if leaf is None else leaf[1] for leaf in given]
        args, kwargs = jax.tree_util.tree_unflatten(structure, leaves)
        return jax_func(*args, **kwargs)

    return _defined(results, kinds)


def _derivative(operator: Operator, of_results: Kinds) -> Operator:
    """Of the arguments and of the gradients of the results: the gradients of the arguments that have one."""
    import jax
    import jax.numpy as jnp

    def results(*arrays: Any) -> list[Any]:
        arguments, grads = arrays[: len(operator.kinds)], list(arrays[len(operator.kinds) :])
        places = [place for place, (dtype, _) in enumerate(operator.kinds) if _has_gradient(dtype)]

        def of_places(*chosen: Any) -> list[Any]:
            everything = list(arguments)
            for place, value in zip(places, chosen, strict=True):
                everything[place] = value
            return [result for result in operator.function(*everything) if jnp.issubdtype(result.dtype, jnp.inexact)]

        # PyTorch's gradients of complex numbers are the conjugates of JAX's
        _, pull = jax.vjp(of_places, *(arguments[place] for place in places))
        return [jnp.conj(grad) for grad in pull([jnp.conj(grad) for grad in grads])]

    return _defined(results, (*operator.kinds, *of_results))


def _defined(function: Callable[..., Any], kinds: Kinds) -> Operator:
    import jax

    stand_ins = [jax.ShapeDtypeStruct(shape, dtypes.to_jax(dtype)) for dtype, shape in kinds]
    outputs, structure = jax.tree_util.tree_flatten(jax.eval_shape(function, *stand_ins))

    def flat(*arrays: Any) -> list[Any]:
        return [jax.numpy.asarray(leaf) for leaf in jax.tree_util.tree_leaves(function(*arrays))]

    name = f"call_{next(_numbers)}"
    arguments = ", ".join(f"Tensor x{place}" for place in range(len(kinds)))
    _library.define(f"{name}({arguments}) -> ({', '.join('Tensor' for _ in outputs)})")
    custom.lowering(f"surestep_jax::{name}")(lambda *arrays: tuple(found) if len(found := flat(*arrays)) != 1 else found[0])
    return Operator(flat, getattr(torch.ops.surestep_jax, name), structure, kinds, [])
