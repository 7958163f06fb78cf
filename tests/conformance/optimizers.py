"""The cases of an entry of PyTorch's optimizer database: every option, each implementation, some steps; and errors."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from conformance.case import DTYPES, Case, Place, short, snapshot
from conformance.tolerance import tolerance

KINDS = (torch.float32, torch.float64)
STEPS = 4
ATOL, RTOL = 1e-5, 1e-4  # four steps of square roots and divisions in float32


def cases(info: Any, dtypes: set[torch.dtype], limit: int | None) -> Iterator[Case]:
    # asked as for CUDA, it lists the capturable options too; what they compute is the same
    inputs = info.optim_inputs_func(device="cuda")
    for dtype in DTYPES:
        if dtype not in dtypes or dtype not in KINDS or info.only_supports_sparse_grads:
            continue
        for index, given in enumerate(itertools.islice(inputs, None if limit is None else 4 * limit)):
            for implementation in ("forloop", *info.supported_impls):
                yield case(info, dtype, index, given, implementation)
    yield from errors(info)


def errors(info: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    for index, error in enumerate(info.optim_error_inputs_func("cpu", torch.float32)):
        given = error.optimizer_error_input

        def call(place: Place, given: Any = given) -> dict[str, Any]:
            parameters = given.params if given.params is not None else [torch.nn.Parameter(torch.ones(2, 2))]
            if callable(parameters):
                parameters = parameters()
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                optimizer = info.optim_cls(place.take(parameters), **given.kwargs)
            return {"errors": optimizer.step()}

        yield Case("errors", "any", f"errors {index} {given.desc}", call, error=error.error_type)


def case(info: Any, dtype: torch.dtype, index: int, given: Any, implementation: str) -> Case:
    chosen = {name: name == implementation for name in ("foreach", "fused", "differentiable") if name in info.supported_impls}

    def call(place: Place) -> dict[str, Any]:
        options = copy.deepcopy(given.kwargs) | chosen
        if place.device == "cpu":
            options.pop("capturable", None)  # refused there
            options = {k: number(v) for k, v in options.items()}  # tensors as numbers say the same
        if implementation == "differentiable":
            return {"steps": differentiated(info.optim_cls, place, dtype, options)}
        return {"steps": steps(info.optim_cls, place, dtype, options, info.step_requires_closure)}

    label = f"{short(dtype)} {implementation} {index} {given.desc}"
    rtol, atol = tolerance((), dtype)
    wide = (max(rtol, RTOL), max(atol, ATOL)) if dtype is torch.float32 else (rtol, atol)
    return Case("steps", short(dtype), label, call, wide)


def number(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(number(v) for v in value)
    return value.item() if isinstance(value, torch.Tensor) else value


def steps(kind: Any, place: Place, dtype: torch.dtype, options: dict[str, Any], closed: bool) -> list[Any]:
    """Some steps of a small model: the parameters and the optimizer's state."""
    torch.manual_seed(0)
    dtype = torch.float64 if place.exact else dtype
    shapes = [(4, 3), (5, 4)] if kind is torch.optim.Muon else [(4, 3), (4,), ()]
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype).to(place.device)) for shape in shapes]
    targets = [torch.randn(shape).to(dtype).to(place.device) for shape in shapes]
    optimizer = kind(parameters, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(p - t).square().sum() + (p * t).cos().sum() for p, t in zip(parameters, targets, strict=True)]).sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        if closed:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = [
        (name, snapshot(value).to(place.device).to(dtype) if isinstance(value, torch.Tensor) else value)
        for p in parameters
        for name, value in sorted(optimizer.state[p].items())
        if name != "step" and not isinstance(value, (list, dict))
    ]
    return [[p.detach() for p in parameters], state]


def differentiated(kind: Any, place: Place, dtype: torch.dtype, options: dict[str, Any]) -> list[Any]:
    """One step that autograd looks through: the parameter, and the derivatives by what it was and by its gradient."""
    torch.manual_seed(0)
    dtype = torch.float64 if place.exact else dtype
    before, slope = (torch.randn(4, 3).to(dtype).to(place.device).requires_grad_() for _ in range(2))
    parameter = before.clone()
    parameter.grad = slope * 2
    kind([parameter], **options).step()
    return [parameter.detach(), *torch.autograd.grad(parameter.square().sum(), (before, slope), allow_unused=True)]
