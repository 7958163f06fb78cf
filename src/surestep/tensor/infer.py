"""What an operation gives, by PyTorch's own word: it is run on `meta` tensors that lie like ours do. Errors come from there too."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from surestep.lower.table import NotLowered
from surestep.tensor import refusals, results
from surestep.tensor.on_cpu import ask_cpu
from surestep.tensor.stand_ins import Stand


def on_meta(func: Any, args: tuple, kwargs: dict) -> tuple[Any, Stand]:
    """The operation's result on meta, and the stand-ins that it was given. Raises what PyTorch raises on the CPU."""
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned: the xla device copies from any host memory; leave pin_memory out")
    stand = Stand("meta")
    try:
        result = stand.run(func, args, kwargs)
    except Exception as error:
        result = _refused_by_meta(func, args, kwargs, error)
    if func._schema.is_mutable:
        check(func, args, kwargs)
    else:
        theirs = check(func, args, kwargs, always=results.in_doubt(func, args, kwargs))
        result = results.corrected(func, args, result, theirs)
    return result, stand


def check(func: Any, args: tuple, kwargs: dict, always: bool = False) -> Any:
    """Raises what the CPU raises where meta may not; returns the CPU's result, or None where it wasn't asked."""
    if func in refusals.SAVED_STATISTICS:
        return None
    kind = refusals.kind(func, args, kwargs)
    if not always and not refusals.may_refuse(func, args, kwargs, kind):
        return None
    theirs = ask_cpu(func, args, kwargs)
    refusals.taken(kind, args, kwargs)
    return theirs


def check_overlap(func: Any, args: tuple, kwargs: dict) -> None:
    """Raises what the CPU raises where a write's target overlaps an operand. Asked for calls that are known, too: what is known of a call
    holds for other offsets of its views, and for an ``out=`` over another storage.
    """
    lie = refusals.overlap(func, args, kwargs)
    if lie is not None:
        ask_cpu(func, args, kwargs)
        refusals.taken(lie, args, kwargs)


def _refused_by_meta(func: Any, args: tuple, kwargs: dict, error: Exception) -> Any:
    """The CPU's error if it refuses too, in its words; what it gives if it takes the call and meta doesn't."""
    theirs = ask_cpu(func, args, kwargs)
    dynamic = torch.Tag.dynamic_output_shape in func.tags  # the shape would be the stand-ins'
    if theirs is None and isinstance(error, NotImplementedError) and func in _LIKE:
        return torch.empty(args[_LIKE[func]].shape, dtype=args[_LIKE[func]].dtype, device="meta")
    if dynamic or (theirs is None and isinstance(error, NotImplementedError) and not func._schema.is_mutable):
        raise NotLowered(f"{func}: PyTorch can't say what it gives without computing it") from error
    if theirs is None or func._schema.is_mutable:
        raise error
    return tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, theirs)


_aten = torch.ops.aten
# Operations that PyTorch has no meta kernel for, by the operand that their result is like: needed where the operands are too large for the
# CPU to be asked.
_LIKE: dict[Any, int] = {
    _aten._sample_dirichlet.default: 0,
    _aten._standard_gamma_grad.default: 0,
    _aten.binomial.default: 0,
    _aten._logcumsumexp.default: 0,
    _aten.multi_margin_loss_backward.default: 1,
    _aten.multilabel_margin_loss_backward.default: 1,
}
