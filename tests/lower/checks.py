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

EXACT = {
    torch.bfloat16: torch.float64, torch.float16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128,
}  # fmt: skip
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


def exactly(value):
    """A tensor in the widest dtype of its kind, to say which of two results is nearer to the truth; a dtype argument likewise."""
    if isinstance(value, torch.dtype):
        return EXACT.get(value, value)
    return value.detach().to(EXACT.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value


def liftable(argument, entry, value):
    """Whether this is a scalar or float argument, which becomes a 0-d array when it changes from step to step."""
    number = isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    scalar = str(argument.type) in ("number", "float", "Optional[number]", "Optional[float]")
    return number and scalar and argument.name not in entry.constants


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
                ours_kwargs["key"] = jax.random.key(0)
            out = outs[0] if isinstance(result, torch.Tensor) else outs
            ours = self.lower(func, entry, out, ours_args, ours_kwargs)
        ours = [ours] if isinstance(result, torch.Tensor) else list(ours)
        assert len(ours) == len(flat), f"{name}: {len(ours)} results, PyTorch has {len(flat)}"
        for position, (mine, theirs, out) in enumerate(zip(ours, flat, outs, strict=True)):
            if out is None or mine is None:
                continue
            assert mine.shape == out.shape and mine.dtype == out.dtype, f"{name}: {mine.shape} {mine.dtype}, PyTorch has {out}"
            if not entry.random:
                self.compare(func, args, kwargs, position, to_torch(mine), theirs.detach().resolve_conj().resolve_neg().contiguous())
        self.seen.add(name)
        return result

    def compare(self, func, args, kwargs, position, mine, theirs):
        """The same within the dtype's tolerance, or no farther than PyTorch's from the result in float64."""
        try:
            torch.testing.assert_close(
                mine, theirs, equal_nan=True, check_stride=False, msg=lambda m: f"{func}{args}{kwargs}: {m}", **self.tolerances
            )
        except AssertionError:
            if mine.dtype not in EXACT:
                raise
            results = func(*tree_map(exactly, args), **tree_map(exactly, kwargs))
            if not self.nearer(results, position, mine, theirs):
                raise

    @staticmethod
    def nearer(results, position, mine, theirs):
        exact = tree_flatten(results)[0][position].detach().resolve_conj()
        eps = torch.finfo(mine.dtype).eps
        mine, theirs = mine.to(exact.dtype), theirs.to(exact.dtype)
        tolerance = eps * exact.abs() + (theirs - exact).abs()
        return bool(((mine - exact).abs() <= tolerance).logical_or(mine == exact).logical_or(mine.isnan() & exact.isnan()).all())

    def lower(self, func, entry, out, args, kwargs):
        """The lowering's result, with the scalars, where they're lifted, as tracers: it can't branch on those."""
        if not self.lift:
            return entry.function(out, *args, **kwargs)
        places = [i for i, a in enumerate(args) if liftable(func._schema.arguments[i], entry, a)]
        names = [a.name for a in func._schema.arguments if a.name in kwargs and liftable(a, entry, kwargs[a.name])]
        if not places and not names:
            return entry.function(out, *args, **kwargs)

        def call(numbers, named):
            given = dict(zip(places, numbers, strict=True))
            return entry.function(out, *[given.get(i, a) for i, a in enumerate(args)], **(kwargs | named))

        return jax.jit(call)([jnp.asarray(args[i]) for i in places], {name: jnp.asarray(kwargs[name]) for name in names})
