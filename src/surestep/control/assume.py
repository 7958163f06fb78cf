"""``assume_pure``: a function whose Python is run once for arguments of one kind, and whose operations are recorded as one from then on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from surestep.control.applied import Application, applied
from surestep.control.pure import Kept, Memory, advance
from surestep.control.recording import Input, recorded
from surestep.tensor import devices, record
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.operands import add_constant
from surestep.trace.recorder import LOCK, Recorder

_Function = TypeVar("_Function", bound=Callable[..., Any])
_memory = Memory()


def assume_pure(fn: _Function) -> _Function:
    """Says that a function only computes, from its arguments: its Python is run once for each kind of arguments.

    A kind is the shapes and dtypes of the tensors among them, whether those want gradients, and the values of all else. Gradients flow, and
    random numbers are others at each call. Tensors that it reads from outside are read anew at each call; any other effect or dependency is
    what you say that there isn't.

    Raises, at the first call of a kind:
        RuntimeError: It writes in place to its arguments or to tensors from outside, or reads a value.
        TypeError: A tensor among the arguments isn't on the xla device, or another argument can't be compared.
    """
    try:
        signature = inspect.signature(fn)
    except ValueError:  # a builtin's
        signature = None
    name = f"assume_pure({getattr(fn, '__qualname__', None) or type(fn).__name__})"

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        return _called(name, fn, fn, args, kwargs)

    return call  # type: ignore[bad-return] (it has the function's signature)


def _called(name: str, owner: Any, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The function's result, recorded for as long as the owner lives."""
    leaves, spec = tree_flatten((args, kwargs))
    key: list[Any] = []
    tensors: list[XlaTensor] = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, XlaTensor):
            tensors.append(leaf)
            key.append(Input(record._dense(leaf.shape, leaf.dtype), leaf.requires_grad))
        elif isinstance(leaf, torch.Tensor):
            raise TypeError(f"{name}: a tensor on {leaf.device} among its arguments; all must be on the xla device")
        else:
            _add(key, leaf, name, position)
    recorder = tensors[0]._storage.trace if tensors else devices.recorders()[devices.current()]
    if any(tensor._storage.trace is not recorder for tensor in tensors):
        raise RuntimeError(f"{name}: tensors on several devices")
    with LOCK:
        kind = (spec, tuple(key), recorder.device)
        (function, outside, structure), drawn = _memory.find(owner, kind, lambda: _recorded(name, recorder, fn, leaves, spec))
        advance(drawn, 1)
        application = Application(function, 0, (0,) * len(tensors), None, False)
        results = iter(applied(application, outside, tensors, drawn))
    constants, of_result = structure
    return tree_unflatten([next(results) if is_tensor else value for is_tensor, value in constants], of_result)


def _add(key: list[Any], leaf: Any, name: str, position: int) -> None:
    try:
        add_constant(key, leaf)
    except TypeError:
        try:
            hash(leaf)
        except TypeError:
            raise TypeError(
                f"{name}: argument {position} is a {type(leaf).__name__}, of which it can't be told whether it is the same again"
            ) from None
        key.append(leaf)


def _recorded(name: str, recorder: Recorder, fn: Callable[..., Any], leaves: list[Any], spec: Any) -> Kept:
    structure: list[Any] = []

    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        waiting = iter(given)
        args, kwargs = tree_unflatten([next(waiting) if isinstance(leaf, XlaTensor) else leaf for leaf in leaves], spec)
        results, of_result = tree_flatten(fn(*args, **kwargs))
        tensors = [isinstance(each, torch.Tensor) for each in results]
        structure[:] = [[(is_tensor, None if is_tensor else each) for is_tensor, each in zip(tensors, results, strict=True)], of_result]
        return [each for each in results if isinstance(each, torch.Tensor)]

    inputs = [Input(record._dense(leaf.shape, leaf.dtype), leaf.requires_grad) for leaf in leaves if isinstance(leaf, XlaTensor)]
    found, outside = recorded(name, recorder, function, inputs, torch.is_grad_enabled(), fn)
    if found.written:
        raise RuntimeError(f"{name}: it writes in place to one of its arguments, so that it isn't pure. Let it return the value")
    return Kept(found, outside, tuple(structure))


class PureModule(torch.nn.Module):
    """A module around another one, whose ``forward`` is ``assume_pure``: a function of its parameters, buffers, mode and arguments."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self._module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's."""
        module = self._module

        def whole(tensors: dict[str, torch.Tensor], mode: tuple[bool, ...], args: tuple, kwargs: dict[str, Any]) -> Any:
            return torch.func.functional_call(module, tensors, args, kwargs)

        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return _called(f"PureModule({type(module).__name__})", self, whole, (tensors, training(module), args, kwargs), {})


def training(module: torch.nn.Module) -> tuple[bool, ...]:
    """The mode of a module and of all in it."""
    return tuple(each.training for each in module.modules())
