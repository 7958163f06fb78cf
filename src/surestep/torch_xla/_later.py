"""Asking the drop-in for what surestep hasn't yet is an error that names it, rather than something that pretends."""

from __future__ import annotations

import dis
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from surestep import _absent


def getter(module: str, hint: str = "") -> Callable[[str], Any]:
    """A module's ``__getattr__``: its submodules, imported when they are asked for; an error for the rest, which ends with the hint."""

    def __getattr__(name: str) -> Any:
        full = f"{module}.{name}"
        if (
            not name.startswith("__")
            and hasattr(sys.modules[f"surestep.{module}"], "__path__")
            and importlib.util.find_spec(f"surestep.{full}")
        ):
            return importlib.import_module(f"surestep.{full}")
        if _absent.is_absent(full):
            raise _error(full)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return __getattr__


def check_module(full: str) -> None:
    """ImportError for a module that isn't there yet."""
    if _absent.is_absent(full):
        raise ImportError(_absent.message(full), name=full)


def _error(full: str) -> AttributeError | ImportError:
    """``from module import name`` replaces an AttributeError by a message of its own, so that it gets an ImportError."""
    frame = sys._getframe(2)
    instruction = frame.f_code.co_code[frame.f_lasti]
    return ImportError(_absent.message(full)) if dis.opname[instruction] == "IMPORT_FROM" else AttributeError(_absent.message(full))
