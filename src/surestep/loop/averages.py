"""``torch.optim.swa_utils.AveragedModel`` without a read. PyTorch's asks on the host at each update if it is the first, which copies. Here
each update averages, and the program puts right what the first has averaged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch.optim import swa_utils

from surestep.tensor.process import at_first_use
from surestep.tensor.xla_tensor import XlaTensor


def _update_parameters(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def update_parameters(self: Any, model: torch.nn.Module) -> None:
        averaged, current = ([*each.parameters(), *each.buffers()] for each in (self.module, model))
        if not all(type(tensor) is XlaTensor and tensor.device == averaged[0].device for tensor in (*averaged, *current)):
            return original(self, model)
        if self.n_averaged.device != averaged[0].device:
            self.n_averaged = self.n_averaged.to(averaged[0].device)
        buffers = (list(each.buffers()) for each in (self.module, model)) if self.use_buffers else ([], [])
        pairs = zip((self.module, model), buffers, strict=True)
        ours, theirs = ([tensor.detach() for tensor in chain(each.parameters(), more)] for each, more in pairs)
        _average(self, ours, theirs)
        first = self.n_averaged == 0
        for old, new in zip(ours, theirs, strict=False):
            old.copy_(torch.where(first, new.to(old.dtype), old))
        if not self.use_buffers:
            for old, new in zip(self.module.buffers(), model.buffers(), strict=True):
                old.detach().copy_(new.detach())
        self.n_averaged += 1
        return None

    return update_parameters


def _average(self: Any, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    if self.multi_avg_fn is not None:
        for dtype in dict.fromkeys(tensor.dtype for tensor in ours):
            chosen = [(old, new) for old, new in zip(ours, theirs, strict=False) if old.dtype is dtype]
            self.multi_avg_fn([old for old, _ in chosen], [new for _, new in chosen], self.n_averaged)
        return
    function = self.avg_fn or swa_utils.get_swa_avg_fn()
    for old, new in zip(ours, theirs, strict=False):
        old.copy_(function(old, new, self.n_averaged))


def _install() -> None:
    swa_utils.AveragedModel.update_parameters = _update_parameters(swa_utils.AveragedModel.update_parameters)  # type: ignore[method-assign]


at_first_use(_install)
