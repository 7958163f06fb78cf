"""What an operation gives, by PyTorch's own word: it is run on `meta` tensors that lie like ours do. Errors come from there too."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from surestep.lower.table import NotLowered
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.layout import Layout


class Stand:
    """Makes stand-ins for the operands of one call, on `meta` or the CPU; tensors that share a storage get stand-ins that share one."""

    def __init__(self, device: str, integers: Any = torch.zeros) -> None:
        self.device = torch.device(device)
        self.integers = integers
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.made: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        """The operand as the stand-ins' device takes it: tensors (in lists too) and devices are replaced, all else is itself."""
        if isinstance(value, XlaTensor):
            found = self.made.get(id(value))
            if found is None:
                found = self.made[id(value)] = self._tensor(value._storage, value._layout)
            return found
        if isinstance(value, torch.Tensor):
            return value if value.ndim == 0 else torch.zeros_like(value, device=self.device)
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(item) for item in value) if type(value) in (list, tuple) else value
        return self.device if isinstance(value, torch.device) else value

    def _tensor(self, storage: Any, layout: Layout) -> torch.Tensor:
        key = (id(storage), layout.dtype)
        base = self.bases.get(key)
        if base is None:
            size = storage.layout.numel * storage.layout.dtype.itemsize // layout.dtype.itemsize
            base = self.bases[key] = self._memory(max(size, layout.span), layout.dtype)
        return base.as_strided(layout.sizes, layout.strides, layout.offset)

    def _memory(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        # indices must be valid, probabilities not all zero
        make = torch.ones if dtype.is_floating_point or dtype.is_complex else self.integers
        return make(size, dtype=dtype, device=self.device)


def on_meta(func: Any, args: tuple, kwargs: dict) -> tuple[Any, Stand]:
    """The operation's result on meta, and the stand-ins that it was given. Raises what PyTorch raises on the CPU."""
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned: the xla device copies from any host memory; leave pin_memory out")
    stand = Stand("meta")
    try:
        result = _run(func, stand, args, kwargs)
    except Exception as error:
        theirs = as_on_cpu(func, args, kwargs)
        dynamic = torch.Tag.dynamic_output_shape in func.tags  # the shape would be the stand-ins'
        if dynamic or (theirs is None and isinstance(error, NotImplementedError) and not func._schema.is_mutable):
            raise NotLowered(f"{func}: PyTorch can't say what it gives without computing it") from error
        if theirs is None or func._schema.is_mutable:
            raise
        result = tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, theirs)  # meta refuses what the CPU takes
    if func._schema.is_mutable:
        if not _known_to_be_right(func, args, kwargs) or _may_overlap(func, args, kwargs) or _any_empty(args, kwargs):
            as_on_cpu(func, args, kwargs)
    elif func in _OTHER_STRIDES or not _known_to_be_right(func, args, kwargs) or _small_and_permuted(args, kwargs):
        theirs = as_on_cpu(func, args, kwargs)
        if (
            isinstance(theirs, torch.Tensor)
            and isinstance(result, torch.Tensor)
            and theirs.shape == result.shape
            and theirs.stride() != result.stride()
        ):
            _OTHER_STRIDES.add(func)
            result = torch.empty_strided(theirs.shape, theirs.stride(), dtype=result.dtype, device="meta")
    return result, stand


# Operations seen to have other strides on the CPU than on meta, where some are written in Python: the CPU is asked each time.
_OTHER_STRIDES: set[Any] = set()


def _run(func: Any, stand: Stand, args: tuple, kwargs: dict) -> Any:
    arguments = [stand.of(a) for a in args]
    return func(*arguments, **{name: None if name == "generator" else stand.of(a) for name, a in kwargs.items()})


_CPU_LIMIT = 1 << 22  # elements: larger operands are not made a second time for the sake of a message
_right: set[tuple] = set()


def _known_to_be_right(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether the CPU was asked before about this operation with these dtypes.

    Meta checks sizes as the CPU does; what it misses is about dtypes.
    """
    key = (func, *((t.dtype, t.ndim == 0) if isinstance(t, torch.Tensor) else type(t) for t in tree_leaves((args, kwargs))))
    if key in _right:
        bounds = torch.Tag.nondeterministic_seeded in func.tags and _numel(args, kwargs) <= _SMALL  # of a distribution: numbers
        return not bounds
    if _numel(args, kwargs) <= _CPU_LIMIT:
        _right.add(key)
    return False


def _any_empty(args: tuple, kwargs: dict) -> bool:
    """Meta leaves out some checks of sizes where there are no elements."""
    return any(t._layout.numel == 0 for t in tree_leaves((args, kwargs)) if isinstance(t, XlaTensor))


def _small_and_permuted(args: tuple, kwargs: dict) -> bool:
    """Where meta's strides may be wrong and asking costs little."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, XlaTensor)]
    return any(not t._layout.contiguous for t in tensors) and _numel(args, kwargs) <= _SMALL


_SMALL = 1 << 14  # elements


def _numel(args: tuple, kwargs: dict) -> int:
    return sum(t._storage.layout.numel for t in tree_leaves((args, kwargs)) if isinstance(t, XlaTensor))


def as_on_cpu(func: Any, args: tuple, kwargs: dict, kernels_too: bool = False) -> Any:
    """Runs the operation on stand-ins on the CPU, to raise in PyTorch's own words; returns the result, or None where it can't be had.

    Meta has other words for some errors, and misses some. That the CPU has no kernel for it is only an error with ``kernels_too``: it may
    be served here.
    """
    if _numel(args, kwargs) > _CPU_LIMIT:
        return None
    if torch.Tag.nondeterministic_seeded in func.tags:
        with torch.random.fork_rng(()):  # the user's CPU generator must not move
            return _on_cpu(func, args, kwargs, kernels_too)
    return _on_cpu(func, args, kwargs, kernels_too)


def _on_cpu(func: Any, args: tuple, kwargs: dict, kernels_too: bool) -> Any:
    try:
        return _run(func, Stand("cpu"), args, kwargs)
    except torch.linalg.LinAlgError:
        return None  # a singular matrix is the stand-ins' fault
    except NotImplementedError as theirs:
        if kernels_too:
            raise theirs.with_traceback(None) from None
        return None
    except Exception as theirs:
        if str(theirs) in _OF_VALUES:
            return None
        try:  # zeros are right for indices, and wrong for divisors and pivots: what passes with either is no mistake
            return _run(func, Stand("cpu", integers=torch.ones), args, kwargs)
        except Exception:  # the first error is the one to be told
            _right.clear()
        raise theirs.with_traceback(None) from None


# What the CPU says of operands' values, which the stand-ins haven't: `repeat_interleave` with an `output_size`.
_OF_VALUES = {"allocated size does not match required size"}


def _may_overlap(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a target's elements overlap each other, or another operand's: PyTorch refuses most such writes, but not on meta."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, XlaTensor)]
    written = [
        value
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for value in tree_leaves(args[position] if position < len(args) else kwargs.get(argument.name))
        if isinstance(value, XlaTensor)
    ]
    for target in written:
        layout = target._layout
        repeated = any(stride == 0 and size > 1 for size, stride in zip(layout.sizes, layout.strides, strict=True))
        if repeated or (not layout.dense and layout.span < layout.numel):
            return True
        if any(other is not target and other._storage is target._storage and other._layout is not layout for other in tensors):
            return True
    return False
