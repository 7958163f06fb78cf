"""The metrics report parses as scripts parse torch_xla's."""

import itertools
import re

import pytest
import torch

import surestep
from surestep.torch_xla.debug import metrics as met

TIME = r"(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?(?:\d+ms)?\d+\.\d+us"


sizes = itertools.count(100)


@pytest.fixture
def report():
    met.clear_all()
    size = next(sizes)  # a new size is a new program
    x = torch.ones(size).to("xla")
    for _ in range(3):
        with surestep.step():
            x = x * 3
    assert x.tolist() == [27.0] * size
    torch.ones(2, device="xla").nonzero()
    return met.metrics_report()


def test_metrics(report):
    for name in ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime"):
        found = re.search(rf"^Metric: {name}\n  TotalSamples: (\d+)\n  Accumulator: ({TIME})\n", report, re.MULTILINE)
        assert found and int(found[1]) >= 1, name
    found = re.search(
        rf"^Metric: ExecuteTime(?:\n  .*)*\n  ValueRate: {TIME} / second\n  Rate: [\d.e+]+ / second\n  Percentiles: (.*)$",
        report,
        re.MULTILINE,
    )
    assert [part.split("=")[0] for part in found[1].split("; ")] == ["1%", "5%", "10%", "20%", "50%", "80%", "90%", "95%", "99%"]
    assert all(re.fullmatch(TIME, part.split("=")[1]) for part in found[1].split("; "))


def test_counters(report):
    counters = dict(re.findall(r"^Counter: (\S+)\n  Value: (\d+)$", report, re.MULTILINE))
    assert counters["aten::nonzero"] == "1"
    assert int(counters["MarkStep"]) >= 3 and int(counters["CachedCompile"]) >= 2
    assert met.counter_value("aten::nonzero") == 1 and met.counter_value("NoSuchCounter") is None
    assert set(met.counter_names()) == set(counters)
    assert met.executed_fallback_ops() == ["aten::nonzero"]


def test_data(report):
    count, total, samples = met.metric_data("CompileTime")
    assert count == len(samples) >= 1 and total == pytest.approx(sum(value for _, value in samples))
    assert total > 1e5  # nanoseconds
    assert met.metric_data("NoSuchMetric") is None
    assert {"CompileTime", "ExecuteTime", "InboundData"} <= set(met.metric_names())


def test_short_report(report):
    short = met.short_metrics_report()
    assert re.findall(r"^(?:Metric|Counter): (\S+)", short, re.MULTILINE) == [
        *("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime"),
        *("CachedCompile", "MarkStep"),
    ]
    chosen = met.short_metrics_report(counter_names=["UncachedCompile"], metric_names=["CompileTime"])
    assert re.findall(r"^(?:Metric|Counter): (\S+)", chosen, re.MULTILINE) == ["CompileTime", "UncachedCompile"]


def test_clearing(report):
    met.clear_all()
    assert met.metrics_report() == "" and met.counter_names() == [] and met.metric_names() == []


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "000.000us"),
        (1_500, "001.500us"),
        (45_120_000, "45ms120.000us".rjust(14, "0")),
        (1_203_045_120, "01s203ms045.120us"),
        (369_401_746_001, "06m09s401ms746.001us"),
        (90_000e9, "01d01h00m00s000ms000.000us"),
    ],
)
def test_times(nanoseconds, text):
    assert met._time(nanoseconds) == text


@pytest.mark.parametrize(("count", "text"), [(10, "10.00B"), (2048, "2.00KB"), (3 << 20, "3.00MB"), (5 << 30, "5.00GB")])
def test_sizes(count, text):
    assert met._bytes(count) == text
