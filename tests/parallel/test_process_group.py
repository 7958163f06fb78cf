"""torch.distributed with the backend "xla", in two processes."""

import pytest
import torch

from parallel import jobs
from parallel.processes import ranks

A, B = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
SUM = [10.0, 12.0, 14.0, 16.0]


@pytest.mark.parametrize("init", [{"init_method": "xla://"}, {}])
def test_each_collective(tmp_path, init):
    first, second = ranks(jobs.c10d, init, directory=tmp_path)
    assert (first["place"], second["place"]) == ((0, 2, "xla"), (1, 2, "xla"))
    for found in (first, second):
        assert found["all_reduce sum"] == found["group of both"] == SUM
        assert found["all_reduce avg"] == [5.0, 6.0, 7.0, 8.0]
        assert found["all_reduce max"] == found["broadcast"] == B
        assert found["all_reduce product"] == [0.0, 11.0, 24.0, 39.0]
        assert found["all_gather"] == [A, B] and found["all_gather_into_tensor"] == A + B
        assert found["objects"] == ([{"from": 0}, "x"], ["rank 0", "rank 1"])
    assert (first["reduce"], second["reduce"]) == (A, SUM)
    assert (first["gather"], second["gather"]) == (None, [A, B])
    assert (first["scatter"], second["scatter"]) == (A, [1.0, 2.0, 3.0, 4.0])
    assert (first["reduce_scatter"], second["reduce_scatter"]) == (SUM, [12.0, 14.0, 16.0, 18.0])
    assert (first["reduce_scatter_tensor"], second["reduce_scatter_tensor"]) == (SUM[:2], SUM[2:])
    assert first["all_to_all"] == [A, B] and second["all_to_all"] == [[v + 1 for v in A], [v + 1 for v in B]]
    assert (first["all_to_all_single"], second["all_to_all_single"]) == ([0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0])
    assert (first["group of one"], second["group of one"]) == (A, B)


@pytest.mark.parametrize(
    ("kind", "options", "style"),
    [
        ("mlp", {}, "step"),
        ("cnn", {"bucket_cap_mb": 0.0002}, "step"),
        ("transformer", {"static_graph": True}, "step"),
        ("mlp", {"find_unused_parameters": True}, "step"),
        ("mlp", {}, "no_sync"),
    ],
)
def test_ddp_is_one_process_on_the_whole_batch(tmp_path, kind, options, style):
    steps, size = 10, 8
    expected, losses = jobs.train_alone(kind, steps, size)
    first, second = ranks(jobs.ddp, kind, steps, size, options, style, directory=tmp_path)
    for alone, a, b in zip(expected, first[0], second[0], strict=True):
        torch.testing.assert_close(a, alone, rtol=1e-4, atol=1e-5)
        assert torch.equal(a, b)
    if losses and first[1]:
        assert [(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)] == pytest.approx(losses, rel=1e-4)
    # One program a step; the first reads twice more, as DDP tells all ranks the order in which it found the gradients.
    found = first[2]["boundaries"]
    assert found.pop("end of step()") == steps
    reads = 2 if options.get("static_graph") or not options.get("find_unused_parameters") else 2 + steps
    assert found.get("a value was read", 0) <= reads and set(found) <= {"a value was read", "the replicas were compared"}
