"""Compiled programs are kept between runs: JAX's persistent compilation cache, in the user's cache directory.

JAX's own variables and settings win: who has set ``JAX_COMPILATION_CACHE_DIR``, or turned the cache off with
``JAX_ENABLE_COMPILATION_CACHE=false``, is left alone. What can't be read or written is a warning, and compiled anew.
"""

from __future__ import annotations

import os
import pathlib
import warnings

_MIN_SECONDS = 0.1  # programs that compile faster aren't worth a file
_MAX_BYTES = 4 << 30


def directory() -> pathlib.Path:
    """Where programs are kept unless JAX was told another place."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache") / "surestep" / "xla"


def enable() -> None:
    """Turns the cache on, if nobody has decided about it; called before the first program is built."""
    import jax

    config = jax.config
    decided = getattr(config, "jax_compilation_cache_dir")  # noqa: B009 (its attributes are made at run time)
    if decided is not None or not getattr(config, "jax_enable_compilation_cache"):  # noqa: B009
        return
    try:
        place = directory()
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(f"{place} can't be written")
    except (OSError, RuntimeError) as error:  # a home that can't be written, or none
        warnings.warn(
            f"surestep: compiled programs can't be kept for the next run: {error}. JAX_COMPILATION_CACHE_DIR names another place",
            stacklevel=2,
        )
        return
    config.update("jax_compilation_cache_dir", str(place))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", _MIN_SECONDS)
    if "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
        config.update("jax_compilation_cache_max_size", _MAX_BYTES)
