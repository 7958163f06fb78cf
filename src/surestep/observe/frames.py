"""The user's line: the innermost frame that is neither ours nor PyTorch's, JAX's or Python's own."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from typing import NamedTuple

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = ("torch", "jax", "jaxlib", "numpy", "click", "tqdm", "functorch")
_STDLIB = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})


class Line(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@functools.cache
def _is_installed(filename: str) -> bool:
    """A framework between the user and us (accelerate, transformers): its line is told only where there is no other."""
    return "site-packages" in filename.split(os.sep)


@functools.cache
def _is_users(filename: str) -> bool:
    if filename.startswith("<frozen") or filename == "<string>":
        return False
    path = os.path.abspath(filename) if not filename.startswith("<") else filename
    if path.startswith(_OURS):
        return False
    parts = path.split(os.sep)
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] not in _LIBRARIES
    return not path.startswith(_STDLIB)


def user_line(skip: int = 1) -> Line | None:
    """The user's line that led here; None where there is none (an interpreter's own thread, say)."""
    frame, installed = sys._getframe(skip), None
    while frame is not None:
        code = frame.f_code
        if _is_users(code.co_filename):
            line = Line(code.co_filename, frame.f_lineno, code.co_name)
            if not _is_installed(code.co_filename):
                return line
            installed = installed or line
        frame = frame.f_back
    return installed


def user_stack() -> tuple[tuple[int, int], ...]:
    """Which of the user's lines are being run, innermost first: equal when a loop comes by the same place again."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_users(code.co_filename):
            found.append((id(code), frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def code_line() -> tuple[int, int]:
    """The innermost line that isn't ours, of whatever library: an identity, not to be shown."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return id(frame.f_code), frame.f_lineno
