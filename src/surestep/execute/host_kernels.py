"""PyTorch's own CPU kernels, called by XLA programs on the CPU: on the program's memory, without copies in and without C++.

XLA calls a *custom call*'s target through its foreign function interface; jaxlib ships the C structures, ``include/xla/ffi/api/c_api.h``.
There is one target. Which kernel a call is for stands in its one attribute, as text, so that a program that was compiled by another process
(JAX's persistent cache) means the same here.

A call may come on any of XLA's threads, or on the one that started the program: nothing of what PyTorch keeps for each thread (modes,
autograd, autocast) may count. It takes the GIL, which no caller of XLA holds while it waits. So that the interpreter doesn't end under a
program that runs, its end waits for all of them.
"""

from __future__ import annotations

import ast
import atexit
import ctypes as c
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from surestep import _compat
from surestep.execute import running

TARGET = "surestep_host_kernel"

Kernel = Callable[..., None]  # (inputs, outputs, *options): writes its results into the outputs' memory
_kernels: dict[str, Kernel] = {}

_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13  # XLA_FFI_Extension_Metadata, XLA_FFI_ExecutionStage_EXECUTE, XLA_FFI_Error_Code_INTERNAL
_VERSION = 0, 3  # of the interface
_DTYPES = {11: torch.float32, 12: torch.float64, 10: torch.float16, 16: torch.bfloat16}  # XLA_FFI_DataType


def _structure(*fields: tuple[str, Any]) -> Any:
    """Each structure of the interface begins with its size and a list of extensions."""
    return type("Structure", (c.Structure,), {"_fields_": [("size", c.c_size_t), ("extension", c.c_void_p), *fields]})


def _plain(*fields: tuple[str, Any]) -> Any:
    return type("Structure", (c.Structure,), {"_fields_": list(fields)})


_Version = _structure(("major", c.c_int), ("minor", c.c_int))
_Metadata = _plain(("size", c.c_size_t), ("version", _Version))
_Extension = _plain(("size", c.c_size_t), ("type", c.c_int), ("next", c.c_void_p), ("metadata", c.POINTER(_Metadata)))
_Buffer = _structure(("dtype", c.c_int), ("data", c.c_void_p), ("rank", c.c_int64), ("sizes", c.POINTER(c.c_int64)))
_Buffers = _structure(("count", c.c_int64), ("types", c.c_void_p), ("items", c.POINTER(c.POINTER(_Buffer))))
_Text = _plain(("start", c.c_void_p), ("length", c.c_size_t))
_Attributes = _structure(("count", c.c_int64), ("types", c.c_void_p), ("names", c.c_void_p), ("items", c.POINTER(c.POINTER(_Text))))
_Failure = _structure(("message", c.c_char_p), ("code", c.c_int))
_fail = c.CFUNCTYPE(c.c_void_p, c.POINTER(_Failure))
_Api = _structure(("version", _Version), ("internal", c.c_void_p), ("fail", _fail))
_Call = _structure(
    ("api", c.POINTER(_Api)),
    ("context", c.c_void_p),
    ("stage", c.c_int),
    ("inputs", _Buffers),
    ("outputs", _Buffers),
    ("attributes", _Attributes),
)


def kernel(function: Kernel) -> Kernel:
    """Makes a function known to programs by its name."""
    _kernels[function.__name__] = function
    return function


def said(name: str, options: Sequence[Any]) -> str:
    """A call of a kernel as the text in a program; ``options`` are Python literals."""
    return repr((name, *options))


@functools.cache
def _meant(text: bytes) -> tuple[str, tuple[Any, ...]]:
    name, *options = ast.literal_eval(text.decode())
    return name, tuple(options)


def _tensors(buffers: Any) -> list[torch.Tensor]:
    """Over XLA's memory, which holds an array row by row."""
    found = []
    for number in range(buffers.count):
        buffer = buffers.items[number].contents
        sizes, dtype = buffer.sizes[: buffer.rank], _DTYPES[buffer.dtype]
        memory = (c.c_char * (math.prod(sizes) * dtype.itemsize)).from_address(buffer.data)
        found.append(torch.frombuffer(memory, dtype=dtype).view(sizes))
    return found


class _Threads:
    """How many threads PyTorch's kernels may take: as many as where the last program was started."""

    count = 0


def prepare() -> None:
    """Called where a program is started: its kernels take as many threads as PyTorch has here."""
    _Threads.count = torch.get_num_threads()


def _run(call: Any) -> None:
    text = call.attributes.items[0].contents
    name, options = _meant(c.string_at(text.start, text.length))
    with _compat.plain_cpu():
        if torch.get_num_threads() != _Threads.count:  # it is a setting of each thread
            torch.set_num_threads(_Threads.count)
        inputs, outputs = _tensors(call.inputs), _tensors(call.outputs)
        try:
            _kernels[name](inputs, outputs, *options)
        except Exception as error:
            figures = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in inputs)
            raise RuntimeError(f"PyTorch's CPU kernel for {name}({figures}) failed: {error}") from error


def _answer(pointer: Any) -> int | None:
    """XLA's call: nothing where all is well, else an error of XLA's, which it takes over."""
    call = pointer.contents
    try:
        if call.extension and (extension := c.cast(call.extension, c.POINTER(_Extension)).contents).type == _METADATA:
            version = extension.metadata.contents.version
            version.major, version.minor = _VERSION
        elif call.stage == _EXECUTE:
            _run(call)
    except BaseException as error:  # C++ is behind this line: whatever comes is given to it as an error, by which the program fails
        failure = _Failure(c.sizeof(_Failure), None, str(error).encode(), _INTERNAL)
        return call.api.contents.fail(c.byref(failure))
    return None


_answer_in_c = c.CFUNCTYPE(c.c_void_p, c.POINTER(_Call))(_answer)  # kept for as long as XLA may call it


@functools.cache
def register() -> None:
    """Makes the target known to XLA, once a process and before the first program that has it is compiled or loaded."""
    import jax

    capsule = c.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
    jax.ffi.register_ffi_target(TARGET, capsule(c.cast(_answer_in_c, c.c_void_p), None, None), platform="cpu")
    atexit.register(running.finish)  # before JAX's own end, which was registered as it was imported
