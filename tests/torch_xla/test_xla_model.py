"""xm over one process with one device."""

import io

import pytest
import torch

import surestep
from surestep.torch_xla.core import functions as xf
from surestep.torch_xla.core import xla_model as xm


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32, device="xla")


def test_devices():
    assert xm.xla_device() == torch.device("xla", 0) and xm.xla_device(0) == torch.device("xla", 0)
    assert xm.get_xla_supported_devices() == ["xla:0"] and xm.get_xla_supported_devices("CPU") == ["xla:0"]
    assert xm.get_xla_supported_devices("TPU") is None
    assert xm.xla_real_devices() == ["CPU:0"] and xm.xla_device_hw("xla:0") == "CPU"
    assert xm.is_xla_tensor(tensor(1)) and not xm.is_xla_tensor(torch.ones(1))
    with pytest.raises(IndexError, match=r"invalid device ordinal: xla:7\. This process has 1"):
        xm.xla_device(7)
    with pytest.raises(RuntimeError, match="no TPU device"):
        xm.xla_device(devkind="TPU")


def test_ordinals(capsys):
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal(), xm.is_master_ordinal()) == (1, 0, 0, True)
    xm.master_print("from", "the master")
    assert capsys.readouterr().out == "from the master\n"


def test_all_reduce():
    x = tensor(1, 2)
    found = xm.all_reduce(xm.REDUCE_SUM, x)
    assert found is not x and found.tolist() == [1, 2]
    assert xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5).tolist() == [0.5, 1]
    listed = [x]
    assert xm.all_reduce(xm.REDUCE_MAX, listed, scale=0.5) is listed
    assert x.tolist() == [0.5, 1]
    with pytest.raises(ValueError, match="unknown reduction 'mean'"):
        xm.all_reduce("mean", x)
    with pytest.raises(ValueError, match="replicas that aren't there"):
        xm.all_reduce(xm.REDUCE_SUM, x, groups=[[0, 1]])


def test_other_collectives_are_identities():
    x = tensor(1, 2)
    assert xm.all_gather(x, dim=0).tolist() == [1, 2]
    assert [found.tolist() for found in xm.all_gather([x, x], pin_layout=False)] == [[1, 2]] * 2
    output = torch.zeros(2, device="xla")
    assert xm.all_gather(x, output=output) is output and output.tolist() == [1, 2]
    assert xm.reduce_scatter(xm.REDUCE_SUM, x, 0.5, 0, 1).tolist() == [0.5, 1]
    assert xm.all_to_all(x, 0, 0, 1).tolist() == [1, 2]
    assert xm.collective_permute(x, [[0, 0]]).tolist() == [1, 2] and xm.collective_permute(x, []).tolist() == [0, 0]
    xm.collective_broadcast([x])
    assert x.tolist() == [1, 2]
    with pytest.raises(ValueError, match="shard_count=2"):
        xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, 2)


def test_autograd_goes_through_the_functional_ones():
    x = tensor(1, 2).requires_grad_()
    (xf.all_reduce(xm.REDUCE_SUM, x, scale=0.5) + xf.all_gather(x)).sum().backward()
    assert x.grad.tolist() == [1.5, 1.5]
    assert xf.distributed_mm(torch.eye(2, device="xla") * 2, torch.ones(2, 3, device="xla")).tolist() == [[2.0] * 3] * 2


def test_meetings():
    assert xm.rendezvous("here", b"payload") == [b"payload"]
    assert xm.mesh_reduce("here", {"loss": tensor(2)}, lambda values: values[0]["loss"].device.type) == "cpu"
    assert xm.mesh_reduce("here", 3, sum) == 3
    assert xm.do_on_ordinals(lambda x: x.device.type, (tensor(1),)) == "cpu"
    assert xm.do_on_ordinals(lambda x: x, (tensor(1),), ordinals=(1,)) is None
    with pytest.raises(TypeError, match="must be bytes"):
        xm.rendezvous("here", "text")


def test_mark_step_and_closures(metrics):
    seen = []
    x = tensor(1) * 2
    xm.add_step_closure(lambda value: seen.append(value.item()), args=(x,))
    assert seen == []
    xm.mark_step()
    assert seen == [2.0]
    assert metrics().to_dict()["boundaries"] == {"sync": 1}


def test_random_state_as_one_integer():
    xm.set_rng_state(5)
    assert xm.get_rng_state() == 5
    first = torch.rand(3, device="xla")
    middle = xm.get_rng_state()
    second = torch.rand(3, device="xla")
    xm.set_rng_state(middle)
    assert torch.equal(torch.rand(3, device="xla"), second) and not torch.equal(first, second)
    with xm.fork_rng():
        torch.rand(3, device="xla")
        inside = xm.get_rng_state()
        xm.mark_step()
    assert xm.get_rng_state() != inside
    surestep.manual_seed(5)
    assert torch.equal(torch.rand(3, device="xla"), first)


def test_moving_data():
    moved = xm.send_cpu_data_to_device({"a": [torch.ones(1)], "b": 3}, "xla")
    assert moved["a"][0].device.type == "xla" and moved["b"] == 3
    assert xm.send_cpu_data_to_device(torch.ones(1), "xla")[0].device.type == "xla"
    assert xm._maybe_convert_to_cpu(moved)["a"][0].device.type == "cpu"
    arena = xm.ToXlaTensorArena(lambda tensors: [each * 2 for each in tensors], lambda each: each.device.type == "cpu")
    assert arena.transform((torch.ones(1), [torch.ones(1)], "x")) == (torch.full((1,), 2.0), [torch.full((1,), 2.0)], "x")


def test_save(tmp_path):
    file = io.BytesIO()
    xm.save({"weight": tensor(1, 2)}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["weight"].tolist() == [1, 2]


def test_memory():
    held = torch.ones(1000, device="xla")
    surestep.sync(wait=True)
    info = xm.get_memory_info()
    assert info["bytes_used"] >= held.numel() * 4 and info["bytes_limit"] > info["bytes_used"]


def test_rate_tracker(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    tracker = xm.RateTracker()
    tracker.add(10)
    clock[0] += 2
    assert tracker.rate() == 5
    tracker.add(30)
    clock[0] += 2
    assert tracker.rate() == pytest.approx(0.6 * 15 + 0.4 * 5)
    assert tracker.global_rate() == 10


def test_buckets():
    seen = []

    def doubled(tensors, outputs):
        seen.append([t.numel() for t in tensors])
        assert outputs is None or len(outputs) == len(tensors)
        return [t * 2 for t in tensors]

    tensors = [torch.ones(size, device="xla") for size in (3, 1 << 17, 5, 1 << 19, 1 << 17, 7)]  # of 4 bytes an element
    found = xm.CoalescingBuckets(doubled, tensors, tensors, bucket_cap_mb=1)()
    assert seen == [[3, 1 << 17, 5], [1 << 19], [1 << 17, 7]] and [t[0].item() for t in found] == [2.0] * 6
    assert xm.CoalescingBuckets(doubled, [])() == []
    with pytest.raises(ValueError, match="1 outputs for 6 inputs"):
        xm.CoalescingBuckets(doubled, tensors, tensors[:1])
    xm.all_reduce_bucketized_gradients(tensors[:1], 0.5, None, True)
    assert tensors[0].tolist() == [0.5] * 3


def test_shared_memory_is_found():
    whole = torch.zeros(4, device="xla")
    xm.check_view_sharing({"a": [whole, whole], "b": torch.zeros(4, device="xla"), "c": torch.zeros(4)})
    with pytest.raises(RuntimeError, match=r"share their memory: one of shape \[4\], and one of shape \[2\]"):
        xm.check_view_sharing([whole, {"view": whole[2:]}])


def test_messages_need_two():
    for function in (xm.send, xm.recv):
        with pytest.raises(NotImplementedError, match=r"among 1 process\(es\): .* torch.distributed.send"):
            function(torch.ones(1, device="xla"), 0)
