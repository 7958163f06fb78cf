"""ToXlaTensorArena, RateTracker: the helpers of torch_xla's that scripts use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from surestep.loop.checkpoint import to_cpu
from surestep.loop.loader import InputSharding, to_device
from surestep.loop.nested import replaced

Tensors = list[torch.Tensor]


class ToXlaTensorArena:
    """Replaces those tensors of a nesting of Python objects that ``select_fn`` picks by what ``convert_fn`` makes of the list of them."""

    def __init__(self, convert_fn: Callable[[Tensors], Tensors], select_fn: Callable[[Any], bool]):
        self._convert_fn = convert_fn
        self._select_fn = select_fn

    def transform(self, inputs: Any) -> Any:
        """The same nesting, with the tensors replaced."""
        found: dict[int, torch.Tensor] = {}

        def collect(tensor: torch.Tensor) -> torch.Tensor:
            if self._select_fn(tensor):
                found[id(tensor)] = tensor
            return tensor

        replaced(inputs, collect)
        if not found:
            return inputs
        converted = dict(zip(found, self._convert_fn(list(found.values())), strict=True))
        return replaced(inputs, lambda tensor: converted.get(id(tensor), tensor))


def maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """The nesting with its tensors on the CPU, or as it is."""
    return to_cpu(data) if convert else data


def send_cpu_data_to_device(datas: Any, device: torch.device | str, input_sharding: InputSharding = None) -> Any:
    """The nesting with its CPU tensors on the device; a list of one for a single tensor. Split as a loader's ``input_sharding`` says."""
    nesting = [datas] if isinstance(datas, torch.Tensor) else datas
    return to_device(nesting, torch.device(device), input_sharding)


class RateTracker:
    """Counts things, and says how many a second: since it was last asked (smoothed), and since the beginning."""

    def __init__(self, smooth_factor: float = 0.4):
        self._smooth = smooth_factor
        self._begin = self._asked = time.time()
        self._new = self._counted = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """So many more."""
        self._new += count

    def rate(self) -> float:
        """A second, lately."""
        now = time.time()
        if now <= self._asked:
            return 0.0
        latest = self._new / (now - self._asked)
        self._rate = latest if self._rate is None else (1 - self._smooth) * latest + self._smooth * self._rate
        self._counted, self._new, self._asked = self._counted + self._new, 0.0, now
        return self._rate

    def global_rate(self) -> float:
        """A second, since the beginning."""
        passed = time.time() - self._begin
        return (self._counted + self._new) / passed if passed > 0 else 0.0
