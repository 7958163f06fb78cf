"""How tensors are said to lie over the devices, and lie there."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import surestep
import surestep.torch_xla.distributed.spmd as xs
import surestep.torch_xla.runtime as xr
from surestep.torch_xla import _XLAC
from surestep.torch_xla.distributed.spmd import ShardingType
from surestep.torch_xla.distributed.spmd.debugging import visualize_sharding, visualize_tensor_sharding


def grid(devices: int) -> xs.Mesh:
    """Two axes, of which the second has two devices where there are."""
    second = 2 if devices > 1 else 1
    return xs.Mesh(np.arange(devices), (devices // second, second), ("data", "model"))


def held(tensor: torch.Tensor) -> torch.Tensor:
    """The whole, put together from what each device holds."""
    whole = torch.full(tensor.shape, math.nan, dtype=tensor.dtype)
    for shard in tensor.local_shards:
        whole[... if shard.indices is ... else tuple(shard.indices)] = shard.data
    return whole


@st.composite
def placements(draw):
    """A mesh of all devices, a shape, and a spec that fits both."""
    devices = xr.global_runtime_device_count()
    factors = [1, 2, 4, 8]
    first = draw(st.sampled_from([factor for factor in factors if devices % factor == 0]))
    second = draw(st.sampled_from([factor for factor in factors if devices // first % factor == 0]))
    sizes = draw(st.permutations((first, second, devices // first // second)))
    mesh = xs.Mesh(np.arange(devices), sizes, ("a", "b", "c"))
    ndim = draw(st.integers(0, 4))
    owners = draw(st.permutations(["a", "b", "c", None, None, None]))[:ndim]
    spec = [owner if owner is None or draw(st.booleans()) else "abc".index(owner) for owner in owners]
    if ndim and draw(st.booleans()) and None not in owners[:1]:
        rest = [axis for axis in "abc" if axis not in owners]
        spec[0] = (owners[0], *rest)
    parts = [math.prod(sizes[axis] for axis in mesh.axes(part)) for part in spec]
    shape = tuple(part * draw(st.integers(1, 3)) for part in parts)
    return mesh, tuple(spec), shape, parts


@settings(deadline=None, max_examples=25)
@given(placements(), st.booleans(), st.booleans())
def test_any_spec_keeps_the_values_and_splits_them_as_it_says(placement, computed, transposed):
    mesh, spec, shape, parts = placement
    values = torch.randn(shape)
    tensor = values.to("xla")
    if transposed and len(shape) > 1:
        tensor = values.transpose(0, 1).contiguous().to("xla").transpose(0, 1)
    if computed:
        tensor, values = tensor * 2, values * 2
    assert xs.mark_sharding(tensor, mesh, spec) is tensor
    assert torch.equal(tensor.cpu(), values)
    assert torch.equal((tensor + 1).cpu(), values + 1)
    if not (transposed and len(shape) > 1) or computed:
        shards = tensor.local_shards
        assert len(shards) == mesh.size()
        assert {tuple(shard.data.shape) for shard in shards} == {tuple(size // part for size, part in zip(shape, parts, strict=True))}
        assert torch.equal(held(tensor), values)
        tensor.add_(1)
        surestep.sync()
        assert tuple(tensor.local_shards[0].data.shape) == tuple(shards[0].data.shape)


def test_a_spec_is_written_as_xla_does(devices):
    mesh = grid(devices)
    tensor = torch.randn(8, 8, device="xla")
    xs.mark_sharding(tensor, mesh, ("data", None))
    rows, columns = mesh.mesh_shape
    if devices == 1:
        assert tensor.sharding_spec == "{replicated}"
        assert tensor.sharding_type == ShardingType.REPLICATED
    elif devices > 2:
        order = ",".join(map(str, range(devices)))
        assert tensor.sharding_spec == f"{{devices=[{rows},1,{columns}]{order} last_tile_dim_replicate}}"
        assert tensor.sharding_type == ShardingType.PARTIAL
        xs.mark_sharding(tensor, mesh, (None, ("model", "data")))
        order = ",".join(map(str, mesh.get_logical_mesh().T.flatten()))
        assert tensor.sharding_spec == f"{{devices=[1,{devices}]{order}}}"
        assert tensor.sharding_type == ShardingType.TILED
    xs.mark_sharding(tensor, mesh, (None, None))
    assert tensor.sharding_spec == "{replicated}"


def test_nothing_is_known_of_a_tensor_that_was_not_marked():
    tensor = torch.randn(4, 4).to("xla")
    assert tensor.sharding_spec == ""
    assert tensor.sharding_type is None
    assert not isinstance(tensor, xs.XLAShardedTensor)


def test_shards_tell_where_they_lie(devices):
    mesh = grid(devices)
    values = torch.arange(64.0).reshape(8, 8)
    tensor = xs.mark_sharding(values.to("xla"), mesh, (None, "model"))
    assert isinstance(tensor, xs.XLAShardedTensor)
    for number, shard in enumerate(tensor.local_shards):
        assert shard.shard_device == f"CPU:{number}"
        assert shard.data.device.type == "cpu"
        assert torch.equal(shard.data, values if shard.indices is ... else values[tuple(shard.indices)])
        assert torch.equal(shard.unpadded_data, shard.data)
        if devices > 1:
            width = 8 // mesh.mesh_shape[1]
            start = number % mesh.mesh_shape[1] * width
            assert shard.indices == [slice(0, 8, 1), slice(start, start + width, 1)]
            assert shard.replica_id == number // 2
    for number, shard in enumerate(xs.mark_sharding(values.to("xla"), mesh, (None, None)).local_shards):
        assert shard.indices is ...
        assert shard.replica_id == number


def test_shards_are_put_back(devices):
    mesh = xs.get_1d_mesh("x")
    values = torch.arange(devices * 2.0)
    tensor = xs.mark_sharding(values.to("xla"), mesh, ("x",))
    shards = tensor.local_shards
    if devices == 1:
        with pytest.raises(RuntimeError, match=r"copy_\(values\)"):
            tensor.load_local_shards_(shards)
        return
    for shard in shards:
        shard.data *= -1
    tensor.load_local_shards_(shards)
    assert torch.equal(tensor.cpu(), -values)
    with pytest.raises(TypeError, match="expected a list of XLAShard"):
        tensor.load_local_shards_([shard.data for shard in shards])
    with pytest.raises(RuntimeError, match="one for each"):
        tensor.load_local_shards_(shards[:-1])
    shards[0].data = torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"\[3\], expected torch.float32\[2\]"):
        tensor.load_local_shards_(shards)
    replicated = xs.mark_sharding(values.to("xla"), mesh, (None,))
    with pytest.raises(RuntimeError, match="isn't split"):
        replicated.load_local_shards_(replicated.local_shards)


def test_a_sharding_lasts_through_writes_copies_and_boundaries(devices):
    mesh = xs.get_1d_mesh("x")
    tensor = xs.mark_sharding(torch.ones(8, 8).to("xla"), mesh, ("x", None))
    spec = tensor.sharding_spec
    tensor.add_(1)
    assert tensor.sharding_spec == spec
    surestep.sync()
    assert tensor.sharding_spec == spec
    tensor.copy_(torch.full((8, 8), 3.0))
    assert tensor.clone().sharding_spec == copy.deepcopy(tensor).sharding_spec == tensor.double().sharding_spec == spec
    other = tensor.clone().mul_(2)
    surestep.sync()
    assert torch.equal(held(other), torch.full((8, 8), 6.0))
    assert len(other.local_shards) == devices
    assert other.local_shards[0].data.shape == (8 // devices, 8)


def test_a_sharding_is_taken_back(devices):
    tensor = xs.mark_sharding(torch.randn(8, 8).to("xla"), xs.get_1d_mesh("x"), ("x", None))
    before = tensor.cpu()
    assert xs.clear_sharding(tensor) is tensor
    assert tensor.sharding_spec == ""
    assert torch.equal(tensor.cpu(), before)
    assert torch.equal((tensor * 2).cpu(), before * 2)


def test_what_is_marked_after_its_use_is_said_once(devices):
    tensor = torch.randn(8, 8).to("xla")
    double = tensor * 2
    if devices > 1:
        with pytest.warns(UserWarning, match=r"sharded at .*test_sharding.py:\d+ after it was used in the same program"):
            xs.mark_sharding(tensor, xs.get_1d_mesh("x"), ("x", None))
    surestep.sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xs.mark_sharding(tensor, xs.get_1d_mesh("x"), (None, "x"))
    assert torch.equal(double.cpu(), tensor.cpu() * 2)


def test_views_are_marked_too(devices):
    mesh = xs.get_1d_mesh("x")
    whole = torch.arange(64.0).reshape(8, 8)
    tensor = whole.to("xla") + 1
    xs.mark_sharding(tensor.view(64), mesh, ("x",))
    xs.mark_sharding(tensor.t(), mesh, ("x", None))
    part = tensor[:4]
    xs.mark_sharding(part, mesh, (None, "x"))
    assert torch.equal((part * 2).cpu(), (whole[:4] + 1) * 2)
    assert torch.equal(tensor.cpu(), whole + 1)


def test_gradients_are_marked(devices):
    mesh = xs.get_1d_mesh("x")
    leaf = torch.randn(8, 8)
    here = leaf.to("xla").requires_grad_()
    xs.mark_sharding_with_gradients(here, mesh, ("x", None)).square().sum().backward()
    assert torch.equal(here.grad.cpu(), 2 * leaf)
    assert tuple(here.grad.local_shards[0].data.shape) == (8 // devices, 8)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (("rows", None), r"names the axis 'rows', and the mesh has \['data', 'model'\]"),
        ((2, None), "names the axis 2"),
        (("data",), r"\('data',\) is for 1 dimensions, and the tensor of shape \[8, 8\] has 2"),
        (("data", "data"), "names an axis twice"),
        (((("data",),), None), "within a tuple there can be axes only"),
        ((True, None), "names the axis True"),
    ],
)
def test_a_wrong_spec_is_an_error(devices, spec, message):
    with pytest.raises(ValueError, match=message):
        xs.mark_sharding(torch.randn(8, 8, device="xla"), grid(devices), spec)


def test_what_cannot_be_divided_is_an_error(devices):
    if devices > 1:
        with pytest.raises(ValueError, match=rf"\[{devices + 1}, 2\] can't be split in {devices} equal parts.*Pad it to {2 * devices}"):
            xs.mark_sharding(torch.randn(devices + 1, 2, device="xla"), xs.get_1d_mesh("x"), ("x", None))


def test_tensors_lie_alike(devices):
    mesh = xs.get_1d_mesh("x")
    split = xs.mark_sharding(torch.randn(8, 8).to("xla"), mesh, ("x", None))
    other = torch.randn(8, 8).to("xla").requires_grad_()
    (first, nothing), (second, _) = xs.shard_as((split, None), (other * 2, None))
    assert nothing is None
    (first * second).sum().backward()
    surestep.sync()
    assert torch.equal(second.cpu(), 2 * other.detach().cpu())
    assert torch.equal(other.grad.cpu(), 2 * split.cpu())
    if devices > 1:
        assert second.sharding_spec == first.sharding_spec == split.sharding_spec


def test_that_they_lie_alike_is_a_part_of_a_compiled_step():
    split = xs.mark_sharding(torch.ones(8, 8).to("xla"), xs.get_1d_mesh("x"), ("x", None))

    @surestep.compile
    def step(x):
        return xs.shard_as(split, x)[1] + 1

    results = [step(torch.full((8, 8), float(number), device="xla")).sum().item() for number in range(4)]
    assert results == [64.0, 128.0, 192.0, 256.0]
    assert "  replayed 2 time(s)" in surestep.explain(step)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda: [torch.ones(4, device="xla")] * 2, "the same structure"),
        (lambda: [None], "two tensors on the xla device, got a XlaTensor and a NoneType"),
        (lambda: [torch.ones(4)], "two tensors on the xla device"),
        (lambda: [torch.ones(3, device="xla")], r"the same shape, got \[4\] and \[3\]"),
    ],
)
def test_what_cannot_lie_alike_is_an_error(second, message):
    with pytest.raises(ValueError, match=message):
        xs.shard_as([torch.ones(4, device="xla")], second())


def test_the_private_module_marks_too(devices):
    mesh = xs.get_1d_mesh("x")
    tensor, other = torch.randn(8, 8).to("xla"), torch.randn(8, 8).to("xla")
    _XLAC._xla_mark_sharding(tensor, mesh.get_op_sharding(("x", None)))
    assert _XLAC._get_xla_sharding_specs([tensor, other]) == [xs.mark_sharding(other.clone(), mesh, ("x", None)).sharding_spec, ""]
    with pytest.raises(ValueError, match="names the axis 'y'"):
        mesh.get_op_sharding(("y", None))


def test_a_sharded_tensor_is_the_tensor():
    tensor = torch.randn(4).to("xla")
    assert xs.XLAShardedTensor(tensor) is tensor
    leaf = xs.XLAShardedTensor(tensor, requires_grad=True)
    leaf.square().sum().backward()
    assert torch.equal(leaf.grad.cpu(), 2 * tensor.cpu())
    with pytest.raises(TypeError, match="How it lies is said by mark_sharding"):
        xs.XLAShardedTensor(tensor, (1,), (0,))


def test_wrong_meshes_are_errors(devices):
    with pytest.raises(ValueError, match="don't fill a mesh"):
        xs.Mesh(np.arange(devices), (devices, 2))
    with pytest.raises(ValueError, match="expected each of 0 to"):
        xs.Mesh([1] * devices if devices > 1 else [3], (devices,))
    with pytest.raises(ValueError, match="expected one name of its own for each axis"):
        xs.Mesh(np.arange(devices), (devices, 1), ("x", "x"))
    with pytest.raises(ValueError, match=f"over {2 * devices} devices, and there are {devices}"):
        xs.mark_sharding(torch.randn(16, device="xla"), xs.Mesh(np.arange(2 * devices), (2 * devices,)), (0,))
    with pytest.raises(TypeError, match="a tensor on cpu"):
        xs.mark_sharding(torch.randn(8), xs.get_1d_mesh(), (0,))
    with pytest.raises(ValueError, match=r"is for 2 slices, and these devices .* are in one"):
        xs.HybridMesh(ici_mesh_shape=(1, devices), dcn_mesh_shape=(2, 1))
    xs.mark_sharding(torch.randn(8, device="xla"), xs.get_1d_mesh(), (0,))
    if devices > 1:
        with pytest.raises(ValueError, match="the first one has them in the order"):
            xs.mark_sharding(torch.randn(8, device="xla"), xs.Mesh(np.arange(devices)[::-1], (devices,)), (0,))


@pytest.mark.parametrize("spec", [None, 0, "data"])
def test_what_is_no_spec_is_an_error(devices, spec):
    for call in (xs.mark_sharding, xs.mark_sharding_with_gradients, lambda _, *given: xs.ShardingSpec(*given)):
        with pytest.raises(TypeError, match="expected a tuple with one entry a dimension"):
            call(torch.ones(8, device="xla"), grid(devices), spec)


@pytest.mark.parametrize("mesh", [None, ("data",), "data"])
def test_what_is_no_mesh_is_an_error(mesh):
    for call in (xs.mark_sharding, xs.mark_sharding_with_gradients, lambda _, *given: xs.ShardingSpec(*given)):
        with pytest.raises(TypeError, match=r"expected an xs\.Mesh"):
            call(torch.ones(8, device="xla"), mesh, (None,))


def test_a_mesh_tells_its_figures(devices):
    mesh = grid(devices)
    assert mesh.size() == devices
    assert list(mesh.shape().items()) == [("data", mesh.mesh_shape[0]), ("model", mesh.mesh_shape[1])]
    assert list(xs.Mesh(np.arange(devices), (devices,)).shape().items()) == [(0, devices)]
    assert mesh.get_axis_name_idx("model") == 1
    assert mesh.get_axis_name_idx("rows") is None
    assert mesh.get_logical_mesh().shape == mesh.mesh_shape
    hybrid = xs.HybridMesh(ici_mesh_shape=mesh.mesh_shape, axis_names=("data", "model"))
    assert hybrid.get_logical_mesh().tolist() == mesh.get_logical_mesh().tolist()
    assert xs.get_1d_mesh("x").axis_names == ("x",)
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    xs.set_global_mesh(None)


def test_one_device_stands_for_all(devices):
    assert xr.is_spmd()
    assert surestep.device_count() == 1
    assert xr.world_size() == xr.global_device_count() == xr.local_device_count() == xr.addressable_device_count() == 1
    assert xr.addressable_runtime_device_count() == devices
    assert len(xr.global_runtime_device_attributes()) == devices
    with pytest.raises(RuntimeError, match="Under SPMD there is one xla device"):
        torch.ones(2, device="xla:1")
    with pytest.raises(NotImplementedError, match="automatic sharding"):
        xr.use_spmd(auto=True)


def test_shardings_are_drawn(devices, capsys):
    tensor = xs.mark_sharding(torch.randn(8, 8).to("xla"), xs.get_1d_mesh("x"), ("x", None))
    assert visualize_tensor_sharding(tensor).row_count == devices
    drawn = capsys.readouterr().out
    assert all(f"CPU {number}" in drawn for number in range(devices))
    assert visualize_sharding("{devices=[2,2]0,1,2,3}").row_count == 2
    with pytest.raises(ValueError, match="is no sharding"):
        visualize_sharding("")


def test_what_is_made_on_the_host_is_on_one_device_until_it_is_used(devices):
    tensor = torch.randn(8, 8).to("xla")
    assert len(tensor._storage.array.devices()) == 1
    xs.mark_sharding(tensor, xs.get_1d_mesh("x"), ("x", None))
    assert sum(shard.data.nbytes for shard in tensor._storage.array.addressable_shards) == 8 * 8 * 4


def test_dlpack_and_saving_see_the_whole(devices, tmp_path):
    values = torch.randn(8, 8)
    tensor = xs.mark_sharding(values.to("xla"), xs.get_1d_mesh("x"), ("x", None))
    torch.save({"w": tensor}, tmp_path / "w.pt")
    assert torch.equal(torch.load(tmp_path / "w.pt", map_location="cpu", weights_only=True)["w"], values)
    assert tensor.tolist() == values.tolist()
    assert torch.equal(torch.from_numpy(tensor.numpy(force=True)), values)


def test_each_device_computes_on_its_part(devices):
    mesh = xs.get_1d_mesh("x")
    values = torch.randn(8, 8)
    part = xs.enable_manual_sharding(values.to("xla"), (None, "x"), mesh=mesh)
    assert part.shape == (8, 8 // devices)
    part = part - part.mean(dim=1, keepdim=True)  # of each device's columns
    part[0] = 5.0
    whole = xs.disable_manual_sharding(part * 2, (None, "x"), (8, 8), mesh=mesh)
    columns = values.reshape(8, devices, 8 // devices)
    expected = (columns - columns.mean(dim=2, keepdim=True)).reshape(8, 8)
    expected[0] = 5.0
    torch.testing.assert_close(whole.cpu(), expected * 2)
    assert tuple(whole.local_shards[0].data.shape) == (8, 8 // devices)


def test_parts_last_and_are_not_read(devices):
    mesh = xs.get_1d_mesh("x")
    values = torch.randn(8, 8)
    part = xs.enable_manual_sharding(values.to("xla"), ("x", None), mesh=mesh) + 1
    surestep.sync()
    part.mul_(2)
    surestep.sync()
    assert (part.sharding_spec, part.sharding_type) == ("{manual}", ShardingType.MANUAL)
    with pytest.raises(RuntimeError, match=r"has a value of its own on each device\. Read what"):
        part.cpu()
    whole = xs.disable_manual_sharding(part, ("x", None), (8, 8), mesh=mesh)
    torch.testing.assert_close(whole.cpu(), (values + 1) * 2)
    with pytest.raises(RuntimeError, match=r"and those of \[16, 8\] are"):
        xs.disable_manual_sharding(part, ("x", None), (16, 8), mesh=mesh)
    with pytest.raises(RuntimeError, match="autograd doesn't go through it"):
        xs.enable_manual_sharding(torch.randn(8, device="xla", requires_grad=True), ("x",), mesh=mesh)
    with pytest.raises(ValueError, match="no mesh"):
        xs.enable_manual_sharding(whole, ("x", None))


def test_what_changes_its_size_is_not_split_any_more(devices):
    mesh = xs.get_1d_mesh("x")
    tensor = xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("x", None))
    tensor.resize_(16, 4)
    assert (tensor + 1).sum().item() == 96
    tensor = xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("x", None))
    tensor.set_(torch.full((3, 3), 2.0, device="xla"))
    assert tensor.sum().item() == 18
    tensor = xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("x", None))
    tensor.t_()
    assert torch.equal((tensor @ torch.ones(8, 1, device="xla")).cpu(), torch.full((4, 1), 8.0))


def test_spmd_begins_in_the_middle():
    """What was on the devices before goes along, what was pending too."""
    script = """
        import torch, surestep
        import surestep.torch_xla.runtime as xr, surestep.torch_xla.distributed.spmd as xs
        first, second = torch.ones(4, device="xla"), torch.ones(4, device=f"xla:{surestep.device_count() - 1}")
        pending = first * 2
        xr.use_spmd()
        assert (pending + first).tolist() == [3.0] * 4
        assert (second + 1).tolist() == [2.0] * 4 and (second.to("xla") + first).tolist() == [2.0] * 4
        assert surestep.device_count() == 1
        xs.mark_sharding(first, xs.get_1d_mesh("x"), (None,))
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_USE_SPMD"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
