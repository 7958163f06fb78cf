"""torch_xla.distributed.spmd.api: PyTorch's DeviceMesh and placements in the place of meshes and partition specs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from surestep.parallel.mesh import Mesh, mark_sharding
from surestep.tensor.devices import use_spmd


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """PyTorch's mesh as one of ours: the same devices in the same grid."""
    use_spmd()
    return Mesh(dt_mesh.mesh.flatten().tolist(), tuple(dt_mesh.mesh.size()), dt_mesh.mesh_dim_names)


def convert_to_xla_partition_spec(tensor: torch.Tensor, placements: Sequence[Placement]) -> tuple[Any, ...]:
    """What splits each of the tensor's dimensions, from what each axis of the mesh does. ``ValueError`` for a partial placement."""
    spec: list[tuple[int, ...]] = [()] * tensor.ndim
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            spec[placement.dim] = (*spec[placement.dim], axis)
        elif not isinstance(placement, Replicate):
            raise ValueError(
                f"a placement {placement}: a tensor that is handed over can be split (Shard) or copied (Replicate) along an axis"
            )
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec)


def xla_distribute_tensor(tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> torch.Tensor:
    """A tensor on the xla device that lies over PyTorch's mesh as the placements say, one an axis; without them, a copy on each device."""
    mesh = convert_to_xla_mesh(device_mesh)
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    if len(placements) != device_mesh.ndim:
        raise ValueError(f"xla_distribute_tensor: {len(placements)} placements for a mesh of {device_mesh.ndim} axes: give one an axis")
    return mark_sharding(tensor.to("xla"), mesh, convert_to_xla_partition_spec(tensor, placements))


def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[..., None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """Splits a module's parameters over the devices, in place.

    Args:
        module: Whose parameters lie on the xla device, or are moved there.
        device_mesh: What the functions are given.
        partition_fn: Called with each submodule's name, the submodule and the mesh; it splits parameters, by ``xla_distribute_tensor`` or
            ``mark_sharding``. The others are copied to each device.
        input_fn: ``(module, inputs, mesh)``: a forward pre-hook.
        output_fn: ``(module, outputs, mesh)``: a forward hook.
    """
    use_spmd()
    module.to("xla")
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, device_mesh)
    if input_fn is not None:
        into = _taking_module(input_fn)
        module.register_forward_pre_hook(lambda owner, inputs: into(owner, inputs, device_mesh))
    if output_fn is not None:
        out = _taking_module(output_fn)
        module.register_forward_hook(lambda owner, inputs, outputs: out(owner, outputs, device_mesh))
    return module


def _taking_module(function: Callable[..., Any]) -> Callable[..., Any]:
    """The older form takes no module."""
    count = len(inspect.signature(function).parameters)
    if count not in (2, 3):
        raise ValueError(f"{getattr(function, '__name__', function)} takes {count} arguments: expected (module, values, mesh)")
    return function if count == 3 else lambda _, values, mesh: function(values, mesh)
