"""The cases of an entry of PyTorch's module database: forward, backward and the state afterwards, in training and evaluation; errors."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from conformance.case import DTYPES, GRADIENTS, Case, Place, gradients, short, snapshot
from conformance.tolerance import tolerance


def cases(info: Any, dtypes: set[torch.dtype], limit: int | None) -> Iterator[Case]:
    for dtype in DTYPES:
        if dtype not in dtypes or dtype not in info.dtypes:
            continue
        for training in (True, False):
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                inputs = info.module_inputs_func(
                    info, device="cpu", dtype=dtype, requires_grad=dtype in GRADIENTS and differentiable(info), training=training
                )
                for index, given in enumerate(itertools.islice(inputs, limit)):
                    if given.forward_input is not None:
                        yield case(info, dtype, training, index, given)
    if info.module_error_inputs_func is not None:
        yield from errors(info)


def errors(info: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    inputs = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    for index, error in enumerate(inputs):
        built, forward = error.module_error_input.constructor_input, error.module_error_input.forward_input

        def call(place: Place, built: Any = built, forward: Any = forward) -> dict[str, Any]:
            args, kwargs = place.take((built.args, built.kwargs))
            module = info.module_cls(*args, **kwargs).to(place.device)
            args, kwargs = place.take((forward.args, forward.kwargs)) if forward is not None else ((), {})
            return {"errors": module(*args, **kwargs)}

        yield Case("errors", "any", f"errors {index}", call, error=error.error_type)


def differentiable(info: Any) -> bool:
    return "Embedding" not in info.name


def case(info: Any, dtype: torch.dtype, training: bool, index: int, given: Any) -> Case:
    built, forward = given.constructor_input, given.forward_input

    def call(place: Place) -> dict[str, Any]:
        torch.manual_seed(0)
        module = info.module_cls(*copy.deepcopy(built.args), **copy.deepcopy(built.kwargs))
        args, kwargs = place.take((tuple(forward.args), dict(forward.kwargs)))
        if info.is_lazy:  # its parameters come into being at the first call
            module.to(dtype)(*(tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, args)))
        module = module.to(torch.float64 if place.exact else dtype).train(training).to(place.device)
        torch.manual_seed(0)
        outputs = module(*args, **kwargs)
        results: dict[str, Any] = {"forward": tree_map(snapshot, outputs)}
        if dtype in GRADIENTS:
            parameters = [p for p in module.parameters() if p.requires_grad]
            try:
                results["backward"] = gradients(place, outputs, (args, kwargs, parameters))
            except Exception as error:  # raised on either side, it is what is compared
                results["backward"] = error.with_traceback(None)
        state = module.state_dict()
        module.load_state_dict(state)
        results["state_dict"] = [(name, snapshot(value)) for name, value in state.items()]
        return results

    mode = "train" if training else "eval"
    ways = ("forward", "backward", "state_dict") if dtype in GRADIENTS else ("forward", "state_dict")
    label = f"{short(dtype)} {mode} {index} {given.desc}".strip()
    return Case("forward", short(dtype), label, call, tolerance(info.decorators, dtype), ways=ways)
