"""Control flow: the functions that it calls are followed as if they were called once, on tensors that nothing is known of but their place.

What a loop gives is computed by the program, whatever the number of rounds; its functions are recorded, and must only compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surestep.control.accumulation import gradient_accumulation
from surestep.control.choice import cond
from surestep.control.layers import scan_layers
from surestep.control.loops import fori_loop, while_loop
from surestep.control.scan import scan
from surestep.replay import attributes
from surestep.replay.values import Known, New, NotReplayable, Value


def follower(function: Any) -> Callable[..., Value] | None:
    """What follows a call of one of these functions."""
    return _FOLLOWERS.get(function)


def is_pure_wrapper(function: Any) -> bool:
    """Whether ``assume_pure`` made it: then the function inside is followed."""
    from surestep.control import assume

    return function.__code__.co_filename == assume.__file__ and hasattr(function, "__wrapped__")


def _scan(walk: Any, fn: Value, init: Value, xs: Value, partition_fn: Value | None = None, is_fn_pure: Value | None = None) -> Value:
    from surestep.replay import calls

    _read(walk, init, xs)
    result = calls.call(walk, fn, [_like(walk, init), _like(walk, xs)], {})
    ys = _like(walk, result.items[1]) if isinstance(result, New) and isinstance(result.items, list) and len(result.items) == 2 else New()
    return New(tuple, [_like(walk, init), ys])


def _scan_layers(
    walk: Any, layers: Value, input_data: Value, partition_fn: Value | None = None, is_layer_pure: Value | None = None
) -> Value:
    from surestep.replay import calls

    found = attributes.iterate(walk, layers)
    if found is None:
        raise NotReplayable("scan_layers of layers that are not known")
    _read(walk, input_data)
    carry = input_data
    for layer in found:
        given = attributes.iterate(walk, carry) if _is_tuple(carry) else [carry]
        if given is None:
            raise NotReplayable("scan_layers: what a layer is given is not known")
        carry = calls.call(walk, layer, given, {})
    return carry


def _accumulation(walk: Any, train_step: Value, iterable_tensors: Value, model: Value, carried_tensors: Value | None = None) -> Value:
    from surestep.replay import calls, modules

    carried_tensors = carried_tensors or Known(None)
    _read(walk, iterable_tensors, carried_tensors)
    if not isinstance(model, Known):
        raise NotReplayable("gradient_accumulation of a model that is not known")
    modules.method(walk, model, torch.nn.Module.parameters, [], {})
    slices = attributes.iterate(walk, iterable_tensors)
    carried = [] if isinstance(carried_tensors, Known) and carried_tensors.object is None else attributes.iterate(walk, carried_tensors)
    if slices is None or carried is None:
        raise NotReplayable("gradient_accumulation of tensors that are not known")
    calls.call(walk, train_step, [_like(walk, value) for value in (*slices, *carried)], {})
    return New(tuple, [New(), *(_like(walk, value) for value in carried)])


def _while_loop(walk: Any, cond_fn: Value, body_fn: Value, carried_inputs: Value) -> Value:
    from surestep.replay import calls

    _read(walk, carried_inputs)
    carried = attributes.iterate(walk, carried_inputs)
    if carried is None:
        raise NotReplayable("while_loop of tensors that are not known")
    for function in (cond_fn, body_fn):
        calls.call(walk, function, [_like(walk, value) for value in carried], {})
    return New(tuple, [_like(walk, value) for value in carried])


def _fori_loop(walk: Any, lower: Value, upper: Value, body_fun: Value, *input_value: Value) -> Value:
    from surestep.replay import calls

    if any(not (isinstance(bound, Known) and isinstance(bound.object, torch.Tensor)) for bound in (lower, upper)):
        raise NotReplayable("fori_loop with a bound that is a number sends it from the host. Give it as a tensor on the device")
    _read(walk, lower, upper, *input_value)
    calls.call(walk, body_fun, [_like(walk, value) for value in input_value], {})
    return New(tuple, [New(), *(_like(walk, value) for value in input_value)])


def _cond(walk: Any, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None) -> Value:
    from surestep.replay import calls

    operands = operands or New(tuple, [])
    _read(walk, pred, operands)
    given = attributes.iterate(walk, operands)
    if given is None:
        raise NotReplayable("cond of operands that are not known")
    results = [calls.call(walk, function, [_like(walk, value) for value in given], {}) for function in (true_fn, false_fn)]
    return _like(walk, results[0])


_FOLLOWERS: dict[Any, Callable[..., Value]] = {
    scan: _scan,
    scan_layers: _scan_layers,
    gradient_accumulation: _accumulation,
    while_loop: _while_loop,
    fori_loop: _fori_loop,
    cond: _cond,
}


def _read(walk: Any, *values: Value) -> None:
    from surestep.replay import calls

    for value in values:
        calls.read(walk, value)


def _is_tuple(value: Value) -> bool:
    return (isinstance(value, New) and value.type is tuple) or (isinstance(value, Known) and isinstance(value.object, tuple))


def _like(walk: Any, value: Value) -> Value:
    """The same structure of tensors that the call makes."""
    if isinstance(value, New):
        if isinstance(value.items, dict):
            return New(value.type, {key: _like(walk, item) for key, item in value.items.items()})
        return New(value.type, None if value.items is None else [_like(walk, item) for item in value.items])
    if isinstance(value, Known):
        thing = value.object
        if isinstance(thing, torch.Tensor):
            return New(torch.Tensor)
        if isinstance(thing, dict):
            return New(dict, {key: _like(walk, Known(item, f"{value.path}[{key!r}]")) for key, item in thing.items()})
        if isinstance(thing, (list, tuple)):
            return New(type(thing), [_like(walk, Known(item, f"{value.path}[{place}]")) for place, item in enumerate(thing)])
        if thing is None:
            return value
    raise NotReplayable(f"{value} is given to a loop")
