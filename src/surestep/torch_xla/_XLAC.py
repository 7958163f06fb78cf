"""torch_xla._XLAC: of torch_xla's private C++ module, the few functions that scripts call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from surestep._device import device_count as _xla_num_devices
from surestep.execute.devices import started
from surestep.execute.tiling import ShardingType
from surestep.loop.boundaries import sync
from surestep.parallel import mesh
from surestep.tensor import device_module
from surestep.tensor.sharding import clear as _xla_clear_sharding
from surestep.tensor.sharding import sharding_spec as _get_xla_sharding_spec
from surestep.tensor.sharding import sharding_type
from surestep.tensor.xla_tensor import XlaTensor
from surestep.torch_xla import _later
from surestep.torch_xla.backends import get_mat_mul_precision as _xla_get_mat_mul_precision
from surestep.torch_xla.backends import set_mat_mul_precision as _xla_set_mat_mul_precision
from surestep.torch_xla.core._machine import all_devices as _xla_get_all_devices
from surestep.torch_xla.core._machine import get_memory_info as _xla_memory_info
from surestep.torch_xla.core._machine import get_rng_state as _xla_get_rng_seed
from surestep.torch_xla.core._machine import get_xla_supported_devices as _xla_get_devices
from surestep.torch_xla.core._machine import set_rng_state as _xla_set_rng_seed
from surestep.torch_xla.core._machine import xla_device
from surestep.torch_xla.core._machine import xla_device_kind as _xla_device_kind
from surestep.torch_xla.core._machine import xla_real_devices as _xla_real_devices
from surestep.torch_xla.debug.metrics import clear_metrics as _clear_xla_counters
from surestep.torch_xla.debug.metrics import clear_metrics as _clear_xla_metrics
from surestep.torch_xla.debug.metrics import counter_names as _xla_counter_names
from surestep.torch_xla.debug.metrics import counter_value as _xla_counter_value
from surestep.torch_xla.debug.metrics import metric_data as _xla_metric_data
from surestep.torch_xla.debug.metrics import metric_names as _xla_metric_names
from surestep.torch_xla.debug.metrics import metrics_report as _xla_metrics_report

__all__ = [
    "ShardingType",
    "_clear_xla_counters",
    "_clear_xla_metrics",
    "_get_ir_debug",
    "_get_xla_sharding_spec",
    "_get_xla_sharding_specs",
    "_get_xla_sharding_type",
    "_set_ir_debug",
    "_xla_clear_sharding",
    "_xla_counter_names",
    "_xla_counter_value",
    "_xla_device_kind",
    "_xla_get_all_devices",
    "_xla_get_default_device",
    "_xla_get_devices",
    "_xla_get_mat_mul_precision",
    "_xla_get_rng_seed",
    "_xla_get_tensor_id",
    "_xla_mark_sharding",
    "_xla_memory_info",
    "_xla_metric_data",
    "_xla_metric_names",
    "_xla_metrics_report",
    "_xla_num_devices",
    "_xla_real_devices",
    "_xla_runtime_is_initialized",
    "_xla_set_mat_mul_precision",
    "_xla_set_rng_seed",
    "_xla_step_marker",
    "_xla_sync_multi",
    "_xla_tensors_from_aten",
    "_xla_wait_device_ops",
]

_ir_debug = False


def _xla_get_default_device() -> str:
    return str(xla_device())


def _xla_runtime_is_initialized() -> bool:
    """Whether JAX's devices are in use in this process."""
    return started()


def _xla_tensors_from_aten(tensors: Sequence[torch.Tensor], devices: Sequence[str]) -> list[torch.Tensor]:
    """Each tensor on its device."""
    return [tensor.to(device) for tensor, device in zip(tensors, devices, strict=True)]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that no other living tensor has."""
    return id(tensor)


def _xla_sync_multi(tensors: Sequence[torch.Tensor], devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True) -> None:
    """Gives the tensors values: a boundary, which does so for all tensors."""
    sync(wait=wait)


def _xla_step_marker(device: Any = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True) -> None:
    sync(wait=wait)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    device_module.wait()


def _get_xla_sharding_type(tensor: torch.Tensor) -> ShardingType | None:
    """The kind of sharding of an xla tensor; None where nothing is known of it."""
    return sharding_type(tensor) if isinstance(tensor, XlaTensor) else None


def _get_xla_sharding_specs(tensors: Sequence[XlaTensor]) -> list[str]:
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _xla_mark_sharding(tensor: torch.Tensor, sharding: mesh.OpSharding) -> None:
    """As ``mark_sharding``; ``mesh.get_op_sharding(partition_spec)`` gives the sharding."""
    mesh.mark_sharding(tensor, sharding.mesh, sharding.partition_spec)


def _get_ir_debug() -> bool:
    return _ir_debug


def _set_ir_debug(on: bool) -> None:
    """Source lines are always kept; torch_xla keeps them only with this on."""
    global _ir_debug
    _ir_debug = on


__getattr__ = _later.getter(
    "torch_xla._XLAC",
    ": of torch_xla's private C++ module only what training scripts call is here. torch_xla.core.xla_model, torch_xla.runtime and "
    "torch_xla.debug.metrics are the public ones",
)
