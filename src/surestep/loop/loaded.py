"""State that ``Optimizer.load_state_dict`` puts in place lies over the devices as its parameter does, like state that a step makes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from surestep import _compat
from surestep.tensor import sharding
from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor


def _lying_as_the_parameter(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def process(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        state = original(param, value, *args, **kwargs)
        if type(param) is XlaTensor and type(state) is XlaTensor and state.shape == param.shape:
            wanted = param._storage.sharding
            if wanted is not None and state._storage.sharding is None and param._layout is param._storage.layout:
                sharding.mark(state, wanted)
        return state

    return process


at_first_use(lambda: _compat.around_loaded_state(_lying_as_the_parameter))
