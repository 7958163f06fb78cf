"""torch_xla._internal.jax_workarounds: JAX beside torch_xla. Here it is the same JAX, and only its devices must have been chosen first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from surestep.execute.devices import jax_devices
from surestep.torch_xla import _later

__all__ = ["jax_import_guard", "requires_jax"]


def jax_import_guard() -> None:
    """Starts JAX as PJRT_DEVICE and the launcher say, before anything else starts it otherwise."""
    jax_devices()


def requires_jax(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: ``jax_import_guard()`` comes before each call."""

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        jax_import_guard()
        return func(*args, **kwargs)

    return guarded


__getattr__ = _later.getter("torch_xla._internal.jax_workarounds")
