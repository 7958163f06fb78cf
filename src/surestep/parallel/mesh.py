"""Meshes: the devices of all processes in a grid with named axes, over which tensors are split."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from surestep.execute import spmd
from surestep.execute.devices import jax_devices
from surestep.execute.world import is_spmd, world
from surestep.observe import frames
from surestep.tensor import sharding
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.marks import Mark

FSDP = "fsdp"  # the axis along which parameters are split to be gathered where they are used
Axis = int | str | None
PartitionSpec = Sequence[Axis | tuple[int | str, ...]]


class Mesh:
    """A grid of devices.

    Args:
        device_ids: The devices' positions among all (``xr.global_runtime_device_count()`` of them), each once, in row-major order.
        mesh_shape: The grid's shape, whose product is the number of devices.
        axis_names: One a dimension of the grid, each once; None: axes go by their number.

    Raises:
        ValueError: These don't fit each other, or the devices that there are.
    """

    def __init__(self, device_ids: np.ndarray | Sequence[int], mesh_shape: tuple[int, ...], axis_names: tuple[str, ...] | None = None):
        self.device_ids = np.asarray(device_ids).reshape(-1)
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        count = len(self.device_ids)
        if count != math.prod(self.mesh_shape):
            raise ValueError(f"Mesh: {count} devices don't fill a mesh of shape {self.mesh_shape}, which has {math.prod(self.mesh_shape)}")
        if sorted(self.device_ids.tolist()) != list(range(count)):
            raise ValueError(f"Mesh: device_ids are {self.device_ids.tolist()}, expected each of 0 to {count - 1} once")
        if self.axis_names is not None and (
            len(self.axis_names) != len(self.mesh_shape) or len(set(self.axis_names)) < len(self.axis_names)
        ):
            raise ValueError(f"Mesh: axis_names are {self.axis_names}, expected one name of its own for each axis of {self.mesh_shape}")

    def __repr__(self) -> str:
        return f"Mesh(device_ids={self.device_ids.tolist()}, mesh_shape={self.mesh_shape}, axis_names={self.axis_names})"

    def size(self) -> int:
        """How many devices there are."""
        return math.prod(self.mesh_shape)

    def shape(self) -> OrderedDict[Any, int]:
        """The size of each axis, by its name, or by its number where axes have no names."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The devices' positions in the grid."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The number of an axis; None where there is none of that name."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def axes(self, part: Axis | tuple[int | str, ...]) -> tuple[int, ...]:
        """The numbers of the axes that a part of a partition spec names. ``ValueError`` where there is no such axis."""
        if part is None:
            return ()
        if isinstance(part, (tuple, list)):
            if any(isinstance(axis, (tuple, list)) or axis is None for axis in part):
                raise ValueError(f"a partition spec has the part {part!r}: within a tuple there can be axes only, not tuples or None")
            return tuple(axis for name in part for axis in self.axes(name))
        number = self.get_axis_name_idx(part) if isinstance(part, str) else part
        if (
            number is None
            or isinstance(number, bool)
            or not isinstance(number, (int, np.integer))
            or not 0 <= number < len(self.mesh_shape)
        ):
            raise ValueError(f"a partition spec names the axis {part!r}, and the mesh has {list(self.shape())}")
        return (int(number),)

    def sharding(self, partition_spec: PartitionSpec, shape: Sequence[int]) -> Any:
        """The JAX sharding of a tensor of this shape. ``ValueError`` where the spec doesn't fit the mesh or the shape."""
        if len(partition_spec) != len(shape):
            raise ValueError(
                f"the partition spec {tuple(partition_spec)} is for {len(partition_spec)} dimensions, and the tensor of shape "
                f"{list(shape)} has {len(shape)}. Give one entry a dimension, None where it isn't split"
            )
        split = [self.axes(part) for part in partition_spec]
        used = [axis for axes in split for axis in axes]
        if len(set(used)) < len(used):
            raise ValueError(f"the partition spec {tuple(partition_spec)} names an axis twice: each can split one dimension, once")
        for dimension, (axes, size) in enumerate(zip(split, shape, strict=True)):
            parts = math.prod(self.mesh_shape[axis] for axis in axes)
            if size % parts:
                raise ValueError(
                    f"dimension {dimension} of a tensor of shape {list(shape)} can't be split in {parts} equal parts, as the partition "
                    f"spec {tuple(partition_spec)} says over a mesh of {dict(self.shape())}. Pad it to {-(-size // parts) * parts}, or put "
                    f"None there"
                )
        self.check_devices()
        return spmd.sharding(self.device_ids.tolist(), self.mesh_shape, split)

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """What ``torch_xla._XLAC._xla_mark_sharding`` takes. ``ValueError`` where there is no such axis."""
        for part in partition_spec:
            self.axes(part)
        return OpSharding(self, partition_spec)

    def check_devices(self) -> None:
        """``ValueError`` where the mesh isn't over all devices, ``RuntimeError`` without SPMD."""
        if not is_spmd():
            raise RuntimeError("sharding needs SPMD: call torch_xla.runtime.use_spmd() at the start of the program")
        there = len(spmd.all_devices())
        if self.size() != there:
            raise ValueError(f"a mesh of shape {self.mesh_shape} is over {self.size()} devices, and there are {there}")


class OpSharding(NamedTuple):
    """A partition spec with its mesh."""

    mesh: Mesh
    partition_spec: PartitionSpec


class HybridMesh(Mesh):
    """A mesh over slices of devices: fast links within a slice (``ici``), slow ones between them (``dcn``).

    The axes stand in the order of growing traffic. JAX chooses which device stands where.

    Args:
        ici_mesh_shape: The grid within a slice.
        dcn_mesh_shape: The grid of slices, of as many axes; None: one slice.
        axis_names: As in ``Mesh``.

    Raises:
        ValueError: The shapes don't fit each other or the devices; or there are several slices, and the devices tell of none.
    """

    def __init__(
        self, *, ici_mesh_shape: tuple[int, ...], dcn_mesh_shape: tuple[int, ...] | None = None, axis_names: tuple[str, ...] | None = None
    ):
        from jax.experimental import mesh_utils

        slices = dcn_mesh_shape or (1,) * len(ici_mesh_shape)
        if len(slices) != len(ici_mesh_shape):
            raise ValueError(f"HybridMesh: ici_mesh_shape {ici_mesh_shape} and dcn_mesh_shape {slices} have different numbers of axes")
        devices = list(spmd.all_devices())
        if np.prod(slices) > 1:
            if not hasattr(devices[0], "slice_index"):
                raise ValueError(
                    f"HybridMesh: dcn_mesh_shape {slices} is for {np.prod(slices)} slices, and these devices "
                    f"({devices[0].platform}) are in one. Leave it out, or write Mesh"
                )
            grid = mesh_utils.create_hybrid_device_mesh(ici_mesh_shape, slices, devices)
        else:
            grid = mesh_utils.create_device_mesh(ici_mesh_shape, devices)
        self.ici_mesh_shape, self.dcn_mesh_shape = tuple(ici_mesh_shape), tuple(slices)
        super().__init__([spmd.positions()[device] for device in grid.flat], grid.shape, axis_names)


_global_mesh: Mesh | None = None


def set_global_mesh(mesh: Mesh | None) -> None:
    """Where no mesh is given, this one is meant."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh of ``set_global_mesh``."""
    return _global_mesh


def the_mesh(mesh: Mesh | None) -> Mesh:
    """The mesh, or the global one. ``ValueError`` where there is neither."""
    found = mesh if mesh is not None else _global_mesh
    if found is None:
        raise ValueError("no mesh: give mesh=..., or call set_global_mesh(mesh) first")
    return found


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All devices in a row."""
    count = len(spmd.all_devices())
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


def mark_sharding(tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Says how a tensor lies over the devices, from here on; a parameter keeps it through its updates. Returns the tensor itself.

    Args:
        tensor: On the xla device, of any shape whose split dimensions can be divided.
        mesh: Over all devices.
        partition_spec: For each dimension of the tensor the axis that splits it, by name or number; a tuple of axes, outermost first; or
            None, where it isn't split. What axes there are besides hold copies.

    Raises:
        ValueError: The spec doesn't fit the tensor or the mesh.
        RuntimeError: SPMD is off.
        TypeError: The tensor isn't on the xla device, the mesh is no mesh, or the spec no tuple.
    """
    _check_types(mesh, partition_spec)
    sharding.mark(_on_device(tensor, "mark_sharding"), mesh.sharding(partition_spec, tensor.shape), _noted(tensor, mesh, partition_spec))
    return tensor


def _noted(tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> Mark | None:
    """For a parameter's matrix that is split over other axes than FSDP's, along which parameters are gathered by design."""
    if not isinstance(tensor, torch.nn.Parameter) or tensor.ndim < 2:  # to gather a vector costs nothing
        return None
    names = list(mesh.shape())
    apart = [axis for part in partition_spec for axis in mesh.axes(part) if names[axis] != FSDP and mesh.mesh_shape[axis] > 1]
    return Mark(frames.user_line(), tuple(tensor.shape), tuple(partition_spec)) if apart else None


def mark_first(output: Any, mesh: Mesh, axes: Any) -> None:
    """Splits the first dimension of a module's output, or of the first tensor of a tuple or dictionary, over one or several axes.

    ``RuntimeError`` where there is no tensor at first.
    """
    values = list(output.values()) if isinstance(output, dict) else output
    first = values[0] if isinstance(values, (tuple, list)) and values else values
    if not isinstance(first, torch.Tensor):
        raise RuntimeError(
            f"the output is a {type(output).__name__}, in which there is no tensor at first. "
            f"Give shard_output=, a function of the output and the mesh that marks what is to be split"
        )
    if first.ndim:
        mark_sharding(first, mesh, (axes, *[None] * (first.ndim - 1)))


def clear_sharding(tensor: torch.Tensor) -> torch.Tensor:
    """Takes back what ``mark_sharding`` said. Returns the tensor itself."""
    sharding.clear(_on_device(tensor, "clear_sharding"))
    return tensor


def _on_device(tensor: Any, name: str) -> XlaTensor:
    if not isinstance(tensor, XlaTensor):
        where = f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else repr(type(tensor).__name__)
        raise TypeError(f"{name}: expected a tensor on the xla device, got {where}. Move it first: tensor.to('xla')")
    return tensor


def _check_types(mesh: Any, partition_spec: Any) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(f"the mesh is {mesh!r}, expected an xs.Mesh. Write xs.Mesh(device_ids, mesh_shape, axis_names)")
    if not isinstance(partition_spec, Sequence) or isinstance(partition_spec, str):
        raise TypeError(
            f"the partition spec is {partition_spec!r}, expected a tuple with one entry a dimension: the axis that splits it, or None"
        )


class MarkShardingFunction(torch.autograd.Function):
    """``MarkShardingFunction.apply(tensor, mesh, partition_spec)``: as ``mark_sharding_with_gradients``."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
        """A tensor with the same values that lies so."""
        ctx.mesh, ctx.partition_spec = mesh, partition_spec
        return mark_sharding(tensor.clone(), mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient, lying so."""
        gradient = gradients[0].clone()
        return mark_sharding(gradient, ctx.mesh, ctx.partition_spec), None, None


def mark_sharding_with_gradients(tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """A tensor with the same values that lies so, and whose gradient does. For activations; ``mark_sharding`` doesn't reach gradients."""
    _check_types(mesh, partition_spec)
    mesh.sharding(partition_spec, tensor.shape)
    found: Any = MarkShardingFunction.apply(tensor, mesh, partition_spec)
    return found


def enable_manual_sharding(tensor: torch.Tensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None) -> torch.Tensor:
    """A tensor that is on each device its part of this one, as the spec splits it.

    What is computed of it, each device computes of its part. It can't be read, and isn't differentiated: use it within an
    ``autograd.Function``.
    """
    found = the_mesh(mesh).sharding(partition_spec, tensor.shape)
    return sharding.parted(_undifferentiated(tensor, "enable_manual_sharding"), found)


def disable_manual_sharding(
    tensor: torch.Tensor, partition_spec: PartitionSpec, full_shape: Sequence[int], *, mesh: Mesh | None = None
) -> torch.Tensor:
    """The tensor of ``full_shape`` of which each device has its part, as the spec splits it."""
    found = the_mesh(mesh).sharding(partition_spec, full_shape)
    return sharding.joined(_undifferentiated(tensor, "disable_manual_sharding"), found, full_shape)


def _undifferentiated(tensor: torch.Tensor, name: str) -> XlaTensor:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name}: autograd doesn't go through it. Use it in the forward and backward of a torch.autograd.Function")
    return _on_device(tensor, name)


@dataclasses.dataclass
class ShardingSpec:
    """How the tensors of a loader's batches are split.

    Attributes:
        mesh: Over all devices.
        partition_spec: As ``mark_sharding`` takes it.
        minibatch: With several processes: each loads its own part of the batch, along the first dimension, rather than all of it.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool = False

    def __post_init__(self) -> None:
        _check_types(self.mesh, self.partition_spec)
        for part in self.partition_spec:
            self.mesh.axes(part)

    def can_apply(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has as many dimensions as the spec."""
        return tensor.ndim == len(self.partition_spec)

    def apply(self, tensor: torch.Tensor) -> None:
        """Marks a tensor on the device."""
        mark_sharding(tensor, self.mesh, self.partition_spec)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the devices, split so; copied to each where it has another number of dimensions.

        Raises:
            ValueError: It can't be divided so.
            RuntimeError: With ``minibatch``, this process's part can't be divided among its devices.
        """
        split = self.can_apply(tensor)
        own = self.minibatch and split
        shape = list(tensor.shape)
        if own:
            here = len(jax_devices())
            if shape[0] % here:
                raise RuntimeError(
                    f"When minibatch is configured, the per-host batch size must be divisible by local runtime device count. Per host "
                    f"input data shape {shape}, {here} devices: set drop_last=True on the DataLoader, or another batch_size"
                )
            shape[0] *= world().size
        spec = self.partition_spec if split else (None,) * tensor.ndim
        try:
            found = self.mesh.sharding(spec, shape)
        except ValueError as error:
            if shape and shape[0] % self.mesh.size():
                raise ValueError(f"{error}. A last, smaller batch: set drop_last=True on the DataLoader") from None
            raise
        return sharding.upload(tensor, found, own)
