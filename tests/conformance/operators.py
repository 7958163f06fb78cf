"""The cases of an entry of PyTorch's operator database."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from conformance.case import DTYPES, GRADIENTS, Case, Place, gradients, short, snapshot
from conformance.tolerance import tolerance
from conformance.values import judge_for

# Memory that nobody wrote: shapes and dtypes are all there is to compare.
UNWRITTEN = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"}

# Factorizations and what is made of them: their error is small against the largest element, not against each.
NORMWISE = {"matrix_exp", "pinverse", "svd", "lu_solve", "cholesky_solve", "cholesky_inverse", "triangular_solve", "ormqr", "qr", "lu"}
# Sums whose terms cancel: a convolution of numbers in [-9, 9], bicubic weights' slopes.
NORMWISE |= {"nn.functional.conv2d", "nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d"}


def differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in GRADIENTS and dtype in op.supported_backward_dtypes("cpu")


def cases(op: Any, dtypes: set[torch.dtype], limit: int | None) -> Iterator[Case]:
    supported = op.supported_dtypes("cpu")
    for dtype in DTYPES:
        if dtype in dtypes and dtype in supported:
            yield from of_dtype(op, dtype, limit)
    if op.error_inputs_func is not None:
        yield from errors(op)


def of_dtype(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[Case]:
    """All samples forward and backward; the other ways on half of them where there is a limit."""
    backward = differentiable(op, dtype)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), limit))
    more = len(samples) if limit is None else max(1, limit // 2)
    make = Maker(op, dtype, backward)
    for index, sample in enumerate(samples):
        yield make.plain(index, sample)
    for index, sample in enumerate(samples[:more]):
        if dense(sample):
            yield make.noncontiguous(index, sample)
        if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
            yield make.in_place(index, sample)
        if op.supports_out:
            yield make.out(index, sample, fitting=True)
            if index == 0:
                yield make.out(index, sample, fitting=False)


class Maker:
    """Makes the cases of one entry in one dtype."""

    def __init__(self, op: Any, dtype: torch.dtype, backward: bool):
        self.op, self.dtype, self.backward = op, dtype, backward
        self.tolerance = tolerance(op.decorators, dtype)

    def case(self, way: str, index: Any, sample: Any, call: Any, ways: tuple[str, ...] = ()) -> Case:
        shapes_only = self.op.name in UNWRITTEN
        label = f"{short(self.dtype)} {way} {index}"
        values = None if shapes_only else judge_for(self.op.name, sample)
        normwise = self.op.name.startswith("linalg.") or self.op.name in NORMWISE
        return Case(way, short(self.dtype), label, call, self.tolerance, values, shapes_only=shapes_only, ways=ways, normwise=normwise)

    def plain(self, index: int, sample: Any, way: str = "forward") -> Case:
        op, backward = self.op, self.backward
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        finish = sample.output_process_fn_grad

        def call(place: Place) -> dict[str, Any]:
            x, args, kwargs = place.take(given)
            outputs = finish(op(x, *args, **kwargs))
            results = {way: tree_map(snapshot, outputs)}
            if backward:
                try:
                    results["backward"] = gradients(place, outputs, (x, args, kwargs))
                except Exception as error:  # raised on either side, it is what is compared
                    results["backward"] = error.with_traceback(None)
            return results

        return self.case(way, index, sample, call, (way, "backward") if backward else (way,))

    def noncontiguous(self, index: int, sample: Any) -> Case:
        return self.plain(index, sample.noncontiguous(), "noncontiguous")

    def in_place(self, index: int, sample: Any) -> Case:
        op = self.op
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))

        def call(place: Place) -> dict[str, Any]:
            x, args, kwargs = place.take(tree_map(snapshot, given))
            if op.name in ("resize_", "resize_as_"):
                return {"in-place": op.inplace_variant(x, *args, **kwargs)}
            base = torch.stack((x, x), -1) if x.ndim else x.clone()  # a view, so that writing through one is seen too
            target = base.select(-1, 0) if x.ndim and index % 2 else x
            result = op.inplace_variant(target, *args, **kwargs)
            return {"in-place": [result, target] + ([base] if index % 2 else [])}

        return self.case("in-place", index, sample, call)

    def out(self, index: int, sample: Any, fitting: bool) -> Case:
        op, finish = self.op, sample.output_process_fn_grad
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))

        def call(place: Place) -> dict[str, Any]:
            x, args, kwargs = place.take(tree_map(snapshot, given))
            with torch.no_grad():
                expected = op(x, *args, **kwargs)
                targets = tree_map(lambda t: filled(t, fitting), expected)
                op(x, *args, **kwargs, out=targets)
            return {"out": finish(targets)}

        return self.case("out", index if fitting else "empty", sample, call)


def dense(sample: Any) -> bool:
    """Whether it can be made noncontiguous: all its tensors have strides."""
    tensors = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    return all(t.layout is torch.strided for t in tensors)


def filled(value: Any, fitting: bool) -> Any:
    """What a result is written into: of its shape, holding something else; or empty, to be resized."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros_like(value) if fitting else value.new_empty(0)


def errors(op: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(op.error_inputs("cpu"))
    for index, error in enumerate(found):
        sample = error.sample_input
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))

        def call(place: Place, given: Any = given) -> dict[str, Any]:
            x, args, kwargs = place.take(given)
            return {"errors": op(x, *args, **kwargs)}

        yield Case("errors", "any", f"errors {index}", call, error=error.error_type)
