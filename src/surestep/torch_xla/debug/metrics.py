"""torch_xla.debug.metrics (`met`): the same names and text as torch_xla's, over surestep's own metrics. Scripts parse the text with
regular expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from surestep.observe.metrics import Metrics, Timing, clear_metrics, metrics

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "counter_names",
    "counter_value",
    "executed_fallback_ops",
    "metric_data",
    "metric_names",
    "metrics_report",
    "short_metrics_report",
]

_PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_SHORT_COUNTERS = ("CachedCompile", "MarkStep")
_SHORT_METRICS = ("CompileTime", "ExecuteTime", "ExecuteReplicatedTime", "TransferToDeviceTime", "TransferFromDeviceTime")


class _Metric(NamedTuple):
    timing: Callable[[Metrics], Timing]
    scale: float  # torch_xla keeps times in nanoseconds
    text: Callable[[float], str]


def _time(nanoseconds: float) -> str:
    """``01s203ms045.120us``: from the first unit that is there to microseconds."""
    rest = nanoseconds / 1e3
    text = ""
    for suffix, microseconds, width in (("d", 86_400e6, 2), ("h", 3_600e6, 2), ("m", 60e6, 2), ("s", 1e6, 2), ("ms", 1e3, 3)):
        count = int(rest // microseconds)
        rest -= count * microseconds
        if count or text:
            text += f"{count:0{width}}{suffix}"
    return f"{text}{rest:07.3f}us"


def _bytes(count: float) -> str:
    for suffix, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f}{suffix}"
    return f"{count:.2f}B"


_METRICS = {
    "CompileTime": _Metric(lambda found: found.compile, 1e9, _time),
    "ExecuteTime": _Metric(lambda found: found.run, 1e9, _time),
    "TransferToDeviceTime": _Metric(lambda found: found.transfer_in, 1e9, _time),
    "TransferFromDeviceTime": _Metric(lambda found: found.transfer_out, 1e9, _time),
    "OutboundData": _Metric(lambda found: found.bytes_in, 1, _bytes),
    "InboundData": _Metric(lambda found: found.bytes_out, 1, _bytes),
    "TensorsGraphSize": _Metric(lambda found: found.values, 1, lambda count: f"{count:.2f}"),
}


def _counters(found: Metrics) -> dict[str, int]:
    counters = {
        "UncachedCompile": found.compile.count,
        "CachedCompile": found.run.count - found.compile.count,
        "MarkStep": sum(count for cause, count in (found.boundaries + found.empty).items() if not cause.implicit),
    }
    for place, count in found.fallbacks.items():
        name = _aten(place.what)
        counters[name] = counters.get(name, 0) + count
    return {name: count for name, count in counters.items() if count}


def _aten(operation: str) -> str:
    """``aten::nonzero`` for ``aten.nonzero.default``."""
    return "::".join(operation.split(".")[:2])


def counter_names() -> list[str]:
    """The counters that have counted something."""
    return list(_counters(metrics()))


def counter_value(name: str) -> int | None:
    """What a counter has counted; None for one that hasn't."""
    return _counters(metrics()).get(name)


def metric_names() -> list[str]:
    """The metrics that have a sample."""
    found = metrics()
    return [name for name, metric in _METRICS.items() if metric.timing(found).count]


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """How many samples a metric has had, their sum, and the last of them as (time, value); None for one without. Times are in
    nanoseconds.
    """
    metric = _METRICS.get(name)
    timing = metric.timing(metrics()) if metric else None
    if metric is None or timing is None or not timing.count:
        return None
    return timing.count, timing.total * metric.scale, [(when, value * metric.scale) for when, value in timing.samples]


def clear_all() -> None:
    """Starts counting anew."""
    clear_metrics()


def clear_counters() -> None:
    """Starts counting anew. Counters are made from the metrics' events here, so that the metrics begin anew too."""
    clear_metrics()


def executed_fallback_ops() -> list[str]:
    """The operations that ran on the host, as ``aten::name``."""
    return [name for name in counter_names() if name.startswith("aten::")]


def metrics_report() -> str:
    """All metrics and counters, as text."""
    return _report(_METRICS, None)


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """The chosen metrics and counters, or the few that matter first, as text."""
    return _report(metric_names or _SHORT_METRICS, counter_names or _SHORT_COUNTERS)


def _report(names: Iterable[str], counters: Iterable[str] | None) -> str:
    found = metrics()
    parts = [_metric_text(name, _METRICS[name], found) for name in names if name in _METRICS]
    counted = _counters(found)
    for name in counted if counters is None else counters:
        if name in counted:
            parts.append(f"Counter: {name}\n  Value: {counted[name]}\n")
    return "".join(parts)


def _metric_text(name: str, metric: _Metric, found: Metrics) -> str:
    timing = metric.timing(found)
    if not timing.count:
        return ""
    lines = [f"Metric: {name}", f"  TotalSamples: {timing.count}", f"  Accumulator: {metric.text(timing.total * metric.scale)}"]
    values = [value * metric.scale for _, value in timing.samples]
    passed = timing.samples[-1][0] - timing.samples[0][0]
    if passed > 0:
        lines.append(f"  ValueRate: {metric.text(sum(values) / passed)} / second")
        lines.append(f"  Rate: {len(values) / passed:g} / second")
    values.sort()
    lines.append(
        "  Percentiles: " + "; ".join(f"{percent}%={metric.text(values[percent * len(values) // 100])}" for percent in _PERCENTILES)
    )
    return "\n".join(lines) + "\n"
