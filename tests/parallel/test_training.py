"""Pattern 2, training with `optimizer_step`, against one process on whole batches."""

import pytest
import torch

from parallel import jobs
from parallel.processes import ranks
from surestep.parallel.launcher import ProcessFailed


@pytest.mark.parametrize(
    ("kind", "style"),
    [("mlp", "step"), ("mlp", "print"), ("cnn", "plain"), ("mlp", "compile"), ("mlp", "compile on one"), ("transformer", "step")],
)
def test_it_is_one_process_on_the_whole_batch(tmp_path, kind, style):
    steps, size = 10 if style == "print" else 50, 8
    expected, losses = jobs.train_alone(kind, steps, size)
    first, second = ranks(jobs.train, kind, steps, size, style, directory=tmp_path)
    for alone, a, b in zip(expected, first[0], second[0], strict=True):
        torch.testing.assert_close(a, alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert [(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)] == pytest.approx(losses, rel=1e-4)
    replays = [steps - 4 if style == "compile" or (style == "compile on one" and rank == 0) else 0 for rank in range(2)]
    assert [first[2]["replays"], second[2]["replays"]] == replays  # whatever the other does
    # one program a step, and the few that compare the replicas; the rank that prints its loss may cut where the others don't
    checks = second[2]["boundaries"]["the replicas were compared"]
    assert second[2]["runs"] == steps + checks and checks == 3
    assert first[2]["runs"] >= second[2]["runs"] if style == "print" else first[2]["runs"] == second[2]["runs"]


@pytest.mark.parametrize("how", ["plain", "weights"])
def test_replicas_that_drift_are_said(tmp_path, how):
    with pytest.raises(ProcessFailed, match=r"parameter 0 of group 0 \(float32\[3, 6\]\).*differs between ranks 0 and 1"):
        ranks(jobs.drift, how, directory=tmp_path)


def test_drift_may_be_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("SURESTEP_CHECK_REPLICAS", "0")
    first, second = ranks(jobs.drift, "plain", directory=tmp_path)
    assert not torch.equal(first[0], second[0])
