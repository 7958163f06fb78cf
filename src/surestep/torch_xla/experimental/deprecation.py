"""torch_xla.experimental.deprecation: old names of functions, which say so when they are called."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["deprecated", "mark_deprecated", "register_deprecated"]


def deprecated(module: ModuleType, new: Callable[..., Any], old_name: str | None = None) -> Callable[..., Any]:
    """A function that warns of the old name, which is the new one's unless another is given, and calls the new one."""
    return _warned(f"{module.__name__}.{old_name or new.__name__}", new)


def mark_deprecated(new: Callable[..., Any], extra_msg: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function warns, and calls the new one in its place."""
    return lambda function: _warned(function.__name__, new, extra_msg)


def register_deprecated(module: ModuleType, new: Callable[..., Any], old_name: str | None = None) -> None:
    """Puts ``deprecated(module, new, old_name)`` into the module, under the old name."""
    setattr(module, old_name or new.__name__, deprecated(module, new, old_name))


def _warned(old: str, new: Callable[..., Any], more: str | None = None) -> Callable[..., Any]:
    @functools.wraps(new)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        logging.warning("%s is an old name: write %s.%s.%s", old, new.__module__, new.__name__, f" {more}" if more else "")
        return new(*args, **kwargs)

    return wrapper
