"""torch_xla.utils.utils (`xu`): the small helpers of torch_xla's that scripts use."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from surestep.torch_xla import _later

__all__ = ["FnDataGenerator", "SampleGenerator", "as_list", "check_env_flag", "eprint", "getenv_as", "timed"]


class SampleGenerator:
    """The same sample so many times: made-up data for a script."""

    def __init__(self, data: Any, sample_count: int):
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The sample."""
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data


class FnDataGenerator:
    """So many batches of ``(data, func(data))``, with ``data`` made by ``gen_tensor(batch_size, *dims)``."""

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Iterable[int] | None = None,
        count: int = 1,
    ):
        self._func = func
        self._batch_size = batch_size
        self._gen_tensor = gen_tensor
        self._dims = list(dims) if dims else [1]
        self._count = count
        self._emitted = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(self._func, self._batch_size, self._gen_tensor, self._dims, self._count)

    def __next__(self) -> tuple[torch.Tensor, Any]:
        return self.next()

    def next(self) -> tuple[torch.Tensor, Any]:
        """The next batch."""
        if self._emitted >= self._count:
            raise StopIteration
        self._emitted += 1
        data = self._gen_tensor(self._batch_size, *self._dims)
        return data, self._func(data)


def as_list(value: Any) -> Any:
    """A list or tuple itself; anything else in a list."""
    return value if isinstance(value, (tuple, list)) else [value]


def getenv_as(name: str, type: Callable[[Any], Any], defval: Any = None) -> Any:
    """An environment variable as a type (``bool`` reads 0 and 1), or the default."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return bool(int(text)) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether an environment variable is on, 1, yes, true or y."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints on stderr."""
    print(*args, file=sys.stderr, **kwargs)  # noqa: T201 (it is what the function is for)


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], Any] = eprint) -> Any:
    """``fn()``; prints how long it took."""
    begin = time.time()
    result = fn()
    printfn(f"{msg}{1000 * (time.time() - begin):.3f}ms")
    return result


__getattr__ = _later.getter("torch_xla.utils.utils")
