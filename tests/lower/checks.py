"""Holds lowerings against CPU eager: every ATen call that a piece of PyTorch code makes is repeated in JAX and compared.

    with Checked() as checked:
        torch.add(torch.ones(3), 2).sum()
    checked.seen   # {"add.Tensor", "sum.default"}: what was lowered and right
    checked.missing  # {"ones.default"}: what has no lowering

Run alone it needs no device: the lowerings are plain functions over JAX arrays.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from surestep.execute import dtypes
from surestep.lower.spec import Out
from surestep.lower.table import lowerings

FACTORY = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}


def to_jax(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().resolve_conj().resolve_neg().contiguous().clone()
    if value.dtype is torch.bfloat16:
        return jnp.asarray(value.view(torch.int16).numpy().view(dtypes.to_jax(torch.bfloat16)))
    return jnp.asarray(value.numpy())


def to_torch(array):
    array = np.asarray(array)
    if dtypes.to_torch(array.dtype) is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, copy=True))


def expected(result):
    return Out(tuple(result.shape), dtypes.to_jax(result.dtype)) if isinstance(result, torch.Tensor) else None


class Checked(TorchDispatchMode):
    """Compares each lowered ATen call made inside with what the CPU gives; random ones by shape and dtype only."""

    def __init__(self, only: set[str] | None = None, lift: bool = False, **tolerances):
        super().__init__()
        self.only, self.lift, self.tolerances = only, lift, tolerances
        self.seen: set[str] = set()
        self.missing: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.")
        entry = lowerings().get(name)
        if entry is None or func._schema.is_mutable or func.is_view:
            if not func._schema.is_mutable and not func.is_view:
                self.missing.add(name)
            return func(*args, **kwargs)
        if self.only is not None and name not in self.only:
            return func(*args, **kwargs)
        with jax.enable_x64(True):
            ours_args, ours_kwargs = tree_map(to_jax, (list(args), {k: v for k, v in kwargs.items() if k not in FACTORY}))
        result = func(*args, **kwargs)
        flat, _ = tree_flatten(result)
        outs = tuple(expected(r) for r in flat)
        with jax.enable_x64(True):
            if entry.random:
                ours_kwargs["key"] = jax.random.key(0, impl="rbg")
            if self.lift:
                ours_args = [self.lifted(func, entry, i, a) for i, a in enumerate(ours_args)]
            ours = entry.function(outs[0] if isinstance(result, torch.Tensor) else outs, *ours_args, **ours_kwargs)
        ours = [ours] if isinstance(result, torch.Tensor) else list(ours)
        assert len(ours) == len(flat), f"{name}: {len(ours)} results, PyTorch has {len(flat)}"
        for mine, theirs, out in zip(ours, flat, outs, strict=True):
            if out is None or mine is None:
                continue
            assert mine.shape == out.shape and mine.dtype == out.dtype, f"{name}: {mine.shape} {mine.dtype}, PyTorch has {out}"
            if not entry.random:
                torch.testing.assert_close(
                    to_torch(mine), theirs.detach().resolve_conj().resolve_neg().contiguous(), equal_nan=True, check_stride=False,
                    msg=lambda m, name=name: f"{name}{args}: {m}", **self.tolerances,
                )
        self.seen.add(name)
        return result

    @staticmethod
    def lifted(func, entry, position, value):
        """Scalar and float arguments as the 0-d arrays they become when they change from step to step."""
        argument = func._schema.arguments[position]
        if isinstance(value, (int, float, complex)) and not isinstance(value, bool) and argument.name not in entry.constants \
                and str(argument.type) in ("number", "float", "Optional[number]", "Optional[float]"):
            return jnp.asarray(value)
        return value
