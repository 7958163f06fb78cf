"""Runs the samples of PyTorch's own operator database through `Checked`, forward and backward."""

from __future__ import annotations

import itertools
import warnings

import torch
from checks import EXACT, Checked
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

# Where elements are equal, any of their places is right.
PLACES = {"sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode"}


class SampleChecked(Checked):
    """`Checked`, but for sorted places: those must hold the same values."""

    def compare(self, func, args, kwargs, position, mine, theirs):
        if str(func).split(".")[1] == "sum" and mine.dtype in EXACT:
            # the error of a sum is relative to its terms: where they cancel, either order of adding has luck
            size = args[0].detach().abs().double().sum().item()
            eps = torch.finfo(mine.dtype).eps
            return torch.testing.assert_close(mine, theirs, rtol=2 * eps, atol=4e-6 * size if size < float("inf") else 0, equal_nan=True)
        if position == 0 or str(func).split(".")[1] not in PLACES or args[0].ndim == 0:
            return super().compare(func, args, kwargs, position, mine, theirs)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        dim = given.get("dim", -1)
        x = args[0].detach()
        if mine.ndim < x.ndim:
            mine, theirs = mine.unsqueeze(dim), theirs.unsqueeze(dim)
        torch.testing.assert_close(x.gather(dim, mine), x.gather(dim, theirs), rtol=0, atol=0, equal_nan=True)
        ordered = mine.sort(dim)[0]
        assert not (ordered.diff(dim=dim) == 0).any(), f"{func}{args}{kwargs}: a place is there twice"


def entries(*names):
    """The database's entries of these names, with all their variants."""
    found = [op for op in op_db if op.name in names]
    missing = set(names) - {op.name for op in found}
    if missing:
        raise KeyError(f"not in PyTorch's database: {sorted(missing)}")
    return found


def with_gradients(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad]


def run(op, dtype, checked, limit=3):
    """The first samples of an entry for a dtype; with gradients where it has any."""
    if dtype not in op.dtypes:
        return
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex) and dtype in op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), limit):
            with checked:
                result = op.op(sample.input, *sample.args, **sample.kwargs)
                results, inputs = with_gradients(result), with_gradients((sample.input, sample.args, sample.kwargs))
                if results and inputs:
                    total = sum((r.abs() if r.is_complex() else r).sum() for r in results)
                    torch.autograd.grad(total, inputs, allow_unused=True)
