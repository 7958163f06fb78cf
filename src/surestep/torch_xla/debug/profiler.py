"""torch_xla.debug.profiler (`xp`), over jax.profiler: the files are what xprof and TensorBoard read."""

from __future__ import annotations

import threading
import time
from typing import Any

from surestep.loop.boundaries import sync
from surestep.torch_xla import _later

__all__ = ["StepTrace", "Trace", "start_server", "start_trace", "stop_trace", "trace", "trace_detached"]

_ports: set[int] = set()


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Lets xprof or TensorBoard ask this process for a profile. The object that is returned is the server."""
    import jax

    server = jax.profiler.start_server(port)
    _ports.add(port)
    return server


def start_trace(log_dir: str) -> None:
    """Begins a profile of this process."""
    import jax

    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """Ends the profile and writes it."""
    import jax

    jax.profiler.stop_trace()


def trace(service_addr: str, logdir: str, duration_ms: int = 1000, **options: Any) -> None:
    """Profiles this process for so long, and waits for it.

    Args:
        service_addr: ``localhost:PORT``, of ``start_server`` in this process.
        logdir: Where the profile is written.
        duration_ms: For how long.
        options: Accepted as torch_xla has them.
    """
    host, _, port = service_addr.removeprefix("http://").rpartition(":")
    if host not in ("localhost", "127.0.0.1") or not port.isdigit() or int(port) not in _ports:
        raise RuntimeError(
            f"xp.trace: {service_addr!r} isn't a server of this process. Profile another process from xprof or TensorBoard instead"
        )
    start_trace(logdir)
    try:
        time.sleep(duration_ms / 1000)
    finally:
        stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """``trace`` on a thread of its own: the loop goes on meanwhile."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, name="surestep profiler").start()


class Trace:
    """Names a part of the program in the profile."""

    def __init__(self, name: str, **kwargs: Any):
        self.name = name
        self._annotation = self._annotate(**kwargs)

    def _annotate(self, **kwargs: Any) -> Any:
        import jax

        return jax.profiler.TraceAnnotation(self.name, **kwargs)

    def __enter__(self) -> Trace:
        self._annotation.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._annotation.__exit__(*error)


class StepTrace(Trace):
    """Names a training step in the profile, and makes a boundary at its end."""

    def _annotate(self, **kwargs: Any) -> Any:
        import jax

        return jax.profiler.StepTraceAnnotation(self.name, **kwargs)

    def __exit__(self, *error: Any) -> None:
        sync()
        super().__exit__(*error)


__getattr__ = _later.getter("torch_xla.debug.profiler")
