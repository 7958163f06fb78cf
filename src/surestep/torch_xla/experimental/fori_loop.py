"""torch_xla.experimental.fori_loop"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surestep.control.loops import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]


def _xla_while_loop_wrapper(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] | None = None,
    fake_tensor: bool = False,
) -> list[Any]:
    """``while_loop``, with tensors that both functions are given besides. Stand-ins are used whatever ``fake_tensor`` says."""
    more = tuple(additional_inputs or ())
    return list(while_loop(lambda *carried: cond_fn(*carried, *more), lambda *carried: body_fn(*carried, *more), carried_inputs))
