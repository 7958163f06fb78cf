"""torch_xla.utils.utils (`xu`): the small helpers of torch_xla's that scripts use."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch

from surestep.loop.nested import DataWrapper, replaced
from surestep.torch_xla import _later

__all__ = [
    "Cleaner",
    "DataWrapper",
    "FnDataGenerator",
    "LazyProperty",
    "SampleGenerator",
    "TimedScope",
    "TmpFolder",
    "as_list",
    "check_env_flag",
    "eprint",
    "flatten_nested_tuple",
    "for_each_instance",
    "for_each_instance_rewrite",
    "get_free_tcp_ports",
    "get_print_fn",
    "getenv_as",
    "list_copy_append",
    "null_print",
    "parallel_work",
    "shape",
    "timed",
]


class Cleaner:
    """Calls a function when nobody has it any more."""

    def __init__(self, func: Callable[[], Any]):
        self.func = func

    def __del__(self) -> None:
        self.func()


class TmpFolder:
    """A new directory, ``name``, which is gone when nobody has this any more."""

    def __init__(self) -> None:
        self.name = name = tempfile.mkdtemp()
        self.cleaner = Cleaner(lambda: shutil.rmtree(name))


class LazyProperty:
    """``value`` is what a function gives, which is called once, when it is first asked for."""

    def __init__(self, gen_fn: Callable[[], Any]):
        self._gen_fn = gen_fn

    @functools.cached_property
    def value(self) -> Any:
        """It."""
        return self._gen_fn()


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


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def get_print_fn(debug: bool | int | None = None) -> Callable[..., None]:
    """``eprint``, or ``null_print`` where ``debug`` is false; without it, the environment variable DEBUG says."""
    return eprint if (getenv_as("DEBUG", int, 0) if debug is None else debug) else null_print


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[[str], Any] | None = eprint) -> Any:
    """``fn()``; prints how long it took, as ``get_print_fn`` says if ``printfn`` is None."""
    with TimedScope(msg, printfn):
        return fn()


class TimedScope:
    """A block whose time is printed at its end, as ``get_print_fn`` says if ``printfn`` is None; not if it has set an error."""

    def __init__(self, msg: str = "", printfn: Callable[[str], Any] | None = eprint):
        self._msg = msg
        self._printfn = get_print_fn() if printfn is None else printfn
        self._error: Any = None

    def __enter__(self) -> TimedScope:
        self._begin = time.time()
        return self

    def __exit__(self, *error: object) -> None:
        if self._error is None and error[0] is None:
            self._printfn(f"{self._msg}{1000 * (time.time() - self._begin):.3f}ms")

    def set_error(self, error: Any) -> None:
        """There is no time to be printed."""
        self._error = error


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> None:
    """``fn`` of each object in a nesting of Python objects that ``select_fn`` picks, once."""

    def seen(found: Any) -> Any:
        fn(found)
        return found

    replaced(value, seen, select_fn)


def for_each_instance_rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    """The same nesting, with what ``fn`` makes of each object that ``select_fn`` picks in its place."""
    return replaced(value, fn, select_fn)


def shape(inputs: Any) -> list[int]:
    """The sizes of a nesting of lists and tuples; those of one level must be alike."""
    if not isinstance(inputs, (list, tuple)):
        return []
    inner = [shape(each) for each in inputs]
    if any(each != inner[0] for each in inner):
        raise AssertionError(f"shape: the parts have different shapes: {inner}")
    return [len(inputs), *(inner[0] if inner else [])]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """What is in a nesting of lists and tuples, in one tuple."""
    if not isinstance(inputs, (list, tuple)):
        return (inputs,)
    return tuple(leaf for each in inputs for leaf in flatten_nested_tuple(each))


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """A new list, with one item more."""
    return [*ilist, item]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """``fn`` over the iterables, as ``map``, on so many threads."""
    with ThreadPoolExecutor(num_workers) as executor:
        return list(executor.map(fn, *args))


def get_free_tcp_ports(n: int = 1) -> Sequence[int]:
    """So many ports that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


__getattr__ = _later.getter("torch_xla.utils.utils")
