"""torch_xla.experimental.spmd_fully_sharded_data_parallel (FSDPv2): parameters split over a mesh's axis ``fsdp``, under SPMD.

Nothing is gathered or scattered by hand: parameters and outputs are marked, and XLA's partitioner gathers a layer's weights where it
computes with them and splits the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from surestep.parallel.mesh import FSDP as AXIS
from surestep.parallel.mesh import Mesh, mark_first, mark_sharding, the_mesh
from surestep.tensor.sharding import sharding_spec
from surestep.tensor.xla_tensor import XlaTensor
from surestep.torch_xla.distributed.fsdp.wrap import recursive_wrap

__all__ = ["SpmdFullyShardedDataParallel"]


class SpmdFullyShardedDataParallel(nn.Module):
    """A module, moved to the device, whose parameters are split along their largest dimension over the mesh's axis ``fsdp``.

    Parameters that were marked before, those of submodules wrapped before among them, are left as they are; so are those whose largest
    dimensions can't be divided, of which each device has a copy. The input is to be split along its first dimension over the same axis, by
    ``mark_sharding`` or a loader's ``input_sharding``.

    Args:
        module: What has a ``forward`` and isn't wrapped yet.
        mesh: Over all devices, with an axis ``fsdp``; the global one where none is given.
        shard_output: ``shard_output(output, mesh)`` marks the output. Without it, the first dimension of the output is split, or of the
            first tensor of a tuple or a ModelOutput.
        auto_wrap_policy: Which submodules are wrapped too: ``torch_xla.distributed.fsdp.wrap`` has policies.
        auto_wrapper_callable: Makes the wrappers in the place of this class: ``auto_wrapper_callable(module, mesh=, shard_output=,
            extra_data_axis=)``.
        extra_data_axis: Another axis, along which there are copies of the model: outputs are split over both.

    Raises:
        RuntimeError: The module is wrapped, or has no ``forward``.
        ValueError: There is no mesh, or it lacks an axis.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Mesh | None = None,
        shard_output: Callable[[Any, Mesh], None] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ):
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise RuntimeError(
                "SpmdFullyShardedDataParallel: the module is wrapped already. Wrap submodules first, and then what holds them"
            )
        if getattr(type(module), "forward", nn.Module.forward) is nn.Module.forward:
            raise RuntimeError(
                f"SpmdFullyShardedDataParallel: a {type(module).__name__} has no forward. Wrap the modules in it, or what calls them"
            )
        mesh = the_mesh(mesh)
        for axis in (AXIS, extra_data_axis):
            if axis is not None and axis not in (mesh.axis_names or ()):
                raise ValueError(f"SpmdFullyShardedDataParallel: the mesh has the axes {list(mesh.shape())}, and none is named {axis!r}")
        super().__init__()
        self._mesh = mesh
        self._batch_axes = (extra_data_axis, AXIS) if extra_data_axis else AXIS
        self._shard_output = shard_output
        if auto_wrap_policy is not None:
            wrapped = [name for name, child in module.named_modules() if isinstance(child, SpmdFullyShardedDataParallel)]
            if wrapped:
                raise ValueError(
                    f"SpmdFullyShardedDataParallel: {wrapped[0]} is wrapped already, which an auto_wrap_policy is to do itself"
                )
            recursive_wrap(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or SpmdFullyShardedDataParallel,
                ignored_modules=[],
                ignored_params=[],
                only_wrap_children=True,
                mesh=mesh,
                shard_output=shard_output,
                extra_data_axis=extra_data_axis,
            )
        self._orig_module = module.to("xla")
        for parameter in module.parameters():
            if isinstance(parameter, XlaTensor) and not sharding_spec(parameter):
                mark_sharding(parameter, mesh, self._largest(parameter))

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        found: Any = self._modules["_orig_module"]
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward; its output is split over the devices."""
        output = self.module(*args, **kwargs)
        if self._shard_output is None:
            mark_first(output, self._mesh, self._batch_axes)
        else:
            self._shard_output(output, self._mesh)
        return output

    def _largest(self, parameter: torch.Tensor) -> list[str | None]:
        """The spec that splits the largest dimension that can be."""
        count = self._mesh.shape()[AXIS]
        spec: list[str | None] = [None] * parameter.ndim
        for dimension in sorted(range(parameter.ndim), key=lambda dimension: -parameter.shape[dimension]):
            if parameter.shape[dimension] and parameter.shape[dimension] % count == 0:
                spec[dimension] = AXIS
                break
        return spec

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[bad-index] (where the module is a Sequential)
