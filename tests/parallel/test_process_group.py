"""torch.distributed with the backend "xla", in two processes."""

import pytest
import torch
import torch.distributed as dist

from parallel import jobs
from parallel.processes import ranks
from surestep.parallel import process_group

process_group.register()

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
        assert found["all_to_all_single with splits"] == found["all_to_all_single"]
        assert found["reduce_scatter of one"] == found["reduce_scatter_tensor"]
        assert found["all_gather_coalesced"] == [[A, A[0]], [B, B[0]]] and found["coalesced"] == (SUM, SUM[:2])
        assert found["objects"] == ([{"from": 0}, "x"], ["rank 0", "rank 1"])
    assert (first["reduce"], second["reduce"]) == (A, SUM)
    assert (first["gather"], second["gather"]) == (None, [A, B])
    assert (first["scatter"], second["scatter"]) == (A, [1.0, 2.0, 3.0, 4.0])
    assert (first["reduce_scatter"], second["reduce_scatter"]) == (SUM, [12.0, 14.0, 16.0, 18.0])
    assert (first["reduce_scatter_tensor"], second["reduce_scatter_tensor"]) == (SUM[:2], SUM[2:])
    assert first["all_to_all"] == [A, B] and second["all_to_all"] == [[v + 1 for v in A], [v + 1 for v in B]]
    assert (first["all_to_all_single"], second["all_to_all_single"]) == ([0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0])
    assert first["uneven all_to_all_single"] == [[0.0, 1.0], [10.0, 11.0]]
    assert second["uneven all_to_all_single"] == [[2.0, 3.0], [4.0, 5.0], [12.0, 13.0], [14.0, 15.0]]
    assert first["uneven all_to_all"] == [[0.0], [10.0]] and second["uneven all_to_all"] == [[2.0, 3.0], [12.0, 13.0]]
    assert first["messages"] == [[2.0] * 3, [2.0] * 3, [20.0] * 3, ["of 0"], [20.0] * 3] and second["last"] == [5.0, 5.0]
    assert second["messages"] == [[1.0] * 3, [1.0] * 3, [10.0] * 3, ["of 0"]]
    for rank, found in enumerate((first, second)):
        functional = found["functional"]
        assert functional["all_reduce"] == SUM and functional["all_gather"] == A + B and functional["broadcast"] == B
        assert functional["reduce_scatter"] == SUM[2 * rank :][:2] and functional["coalesced"] == SUM + [v + 2 for v in SUM]
        assert functional["all_to_all"] == A[2 * rank :][:2] + B[2 * rank :][:2]
    assert (first["group of one"], second["group of one"]) == (A, B)


@pytest.mark.parametrize(
    ("kind", "options", "style"),
    [
        ("mlp", {}, "step"),
        ("cnn", {"bucket_cap_mb": 0.0002}, "step"),
        ("transformer", {"static_graph": True}, "step"),
        ("mlp", {"find_unused_parameters": True}, "step"),
        ("mlp", {}, "no_sync"),
        ("mlp", {}, "half"),
        ("batch norm", {}, "step"),
    ],
)
def test_ddp_is_one_process_on_the_whole_batch(tmp_path, kind, options, style):
    steps, size = 10 if style != "step" or options.get("find_unused_parameters") else 50, 8
    expected, losses = jobs.train_alone(kind, steps, size)
    first, second = ranks(jobs.ddp, kind, steps, size, options, style, directory=tmp_path)
    rtol, atol = (2e-2, 2e-3) if style == "half" else (1e-4, 1e-5)
    for alone, a, b in zip(expected, first[0], second[0], strict=True):
        torch.testing.assert_close(a, alone, rtol=rtol, atol=atol)
        assert torch.equal(a, b)
    if style != "half" and losses and first[1]:
        assert [(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)] == pytest.approx(losses, rel=1e-4)
    # One program a step; the first reads twice more, as DDP tells all ranks the order in which it found the gradients.
    found = first[2]["boundaries"]
    assert found.pop("end of step()") == steps
    reads = 2 if options.get("static_graph") or not options.get("find_unused_parameters") else 2 + steps
    assert found.get("a value was read", 0) <= reads and set(found) <= {"a value was read", "the replicas were compared"}


def test_fully_shard_points_to_ours():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("xla", init_method="xla://")
    try:
        with pytest.raises(NotImplementedError, match=r"torch_xla.distributed.fsdp.XlaFullyShardedDataParallel"):
            fully_shard(torch.nn.Linear(2, 2).to("xla"))
    finally:
        dist.destroy_process_group()


def test_ddp_with_uneven_inputs(tmp_path):
    """`join`: who has no batches left adds zeros to the others' gradients."""
    first, second = ranks(jobs.joined, directory=tmp_path)
    torch.manual_seed(0)
    model = jobs.network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(jobs.batches("mlp", 5, 4)):
        optimizer.zero_grad()
        # the batches are the same on both, while both have some; the mean is over both in any case
        (torch.nn.functional.cross_entropy(model(x), y) * (1.0 if number < 3 else 0.5)).backward()
        optimizer.step()
    for expected, a, b in zip(model.parameters(), first, second, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected.detach(), rtol=1e-4, atol=1e-5)
