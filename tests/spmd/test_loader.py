"""Batches that a loader splits over the devices."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import surestep.torch_xla.core.xla_model as xm
import surestep.torch_xla.distributed.spmd as xs
from surestep.torch_xla.distributed.parallel_loader import MpDeviceLoader


def images(count: int) -> list[tuple[torch.Tensor, int]]:
    return [(torch.full((3, 4, 4), float(number)), number) for number in range(count)]


def test_one_spec_splits_what_has_its_dimensions(devices):
    mesh = xs.get_1d_mesh("data")
    loader = MpDeviceLoader(DataLoader(images(32), batch_size=16), "xla", input_sharding=xs.ShardingSpec(mesh, ("data", None, None, None)))
    batches = list(loader)
    assert len(batches) == 2
    for number, (data, label) in enumerate(batches):
        assert [shard.data.shape[0] for shard in data.local_shards] == [16 // devices] * devices
        assert torch.equal(data.cpu()[:, 0, 0, 0], torch.arange(16.0) + 16 * number)
        assert torch.equal(label.cpu(), torch.arange(16) + 16 * number)
        assert label.sharding_spec == "{replicated}"


def test_a_spec_for_each_key(devices):
    mesh = xs.get_1d_mesh("data")
    batches = [{"x": torch.ones(8, 2), "y": torch.arange(8), "names": ["a"]}]
    specs = {"x": xs.ShardingSpec(mesh, ("data", None)), "y": None, "names": None}
    (batch,) = MpDeviceLoader(batches, "xla", input_sharding=specs)
    assert batch["x"].local_shards[0].data.shape == (8 // devices, 2)
    assert batch["y"].tolist() == list(range(8))
    assert batch["names"] == ["a"]
    with pytest.raises(KeyError, match=r"no spec for the batch's keys \['names'\]"):
        list(MpDeviceLoader(batches, "xla", input_sharding={"x": None, "y": None}))
    with pytest.raises(KeyError, match=r"specs for \['z'\], and the batch has the keys \['x', 'y', 'names'\]"):
        list(MpDeviceLoader(batches, "xla", input_sharding={**specs, "z": None}))
    with pytest.raises(ValueError, match="the batch is no dictionary but a list"):
        list(MpDeviceLoader([[torch.ones(2)]], "xla", input_sharding=specs))


def test_a_smaller_batch_is_an_error(devices):
    if devices == 1:
        return
    mesh = xs.get_1d_mesh("data")
    spec = xs.ShardingSpec(mesh, ("data", None, None, None))
    loader = iter(MpDeviceLoader(DataLoader(images(17), batch_size=16), "xla", input_sharding=spec))
    next(loader)
    with pytest.raises(ValueError, match=r"shape \[1, 3, 4, 4\] can't be split in .*set drop_last=True"):
        next(loader)
    spec = xs.ShardingSpec(mesh, ("data", None, None, None), minibatch=True)
    with pytest.raises(RuntimeError, match=r"per-host batch size must be divisible by local runtime device count\. Per host"):
        list(MpDeviceLoader(DataLoader(images(1), batch_size=16), "xla", input_sharding=spec))


def test_a_wrong_axis_is_said_when_the_spec_is_made():
    with pytest.raises(ValueError, match="names the axis 'rows'"):
        xs.ShardingSpec(xs.get_1d_mesh("data"), ("rows",))


def test_tensors_are_sent_split(devices):
    mesh = xs.get_1d_mesh("x")
    values = torch.arange(16.0).reshape(1, 16)
    spec = xs.ShardingSpec(mesh, (None, "x"))
    assert spec.can_apply(values)
    (sent,) = xm.send_cpu_data_to_device([values], "xla", input_sharding=spec)
    assert torch.equal(sent.cpu(), values)
    assert sent.local_shards[0].data.shape == (1, 16 // devices)
    marked = values.to("xla")
    spec.apply(marked)
    assert marked.sharding_spec == sent.sharding_spec
