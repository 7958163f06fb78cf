"""Between PyTorch's memory and the device's. Inwards always a copy: the host array may be written again right after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from surestep.execute import dtypes
from surestep.execute.devices import jax_devices

if TYPE_CHECKING:
    import jax

# NumPy has no such types of its own; their bits travel as integers of the same width.
_AS_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor (strided, any layout) as a NumPy array over the same memory, in the dtype that JAX knows."""
    dtype = dtypes.to_jax(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    bits = _AS_BITS.get(tensor.dtype)
    return tensor.numpy() if bits is None else tensor.view(bits).numpy().view(dtype)


def to_device(tensor: torch.Tensor, index: int) -> jax.Array:
    """A private copy of a CPU tensor on device ``index``, as a JAX array of the same shape and dtype."""
    import jax

    # On the CPU device_put aliases a well-aligned NumPy array, may_alias=False or not: what it gets must be nobody else's.
    array = np.array(host_array(tensor), copy=True, order="C")
    with jax.enable_x64(True):
        return jax.device_put(array, jax_devices()[index])


def to_host(array: jax.Array) -> torch.Tensor:
    """A JAX array as a new CPU tensor (contiguous, its own memory). Waits for the array; raises what its program raised."""
    values = np.array(array, copy=True, order="C")
    dtype = dtypes.to_torch(values.dtype)
    bits = _AS_BITS.get(dtype)
    if bits is None:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16 if bits is torch.int16 else np.uint8)).view(dtype)


def between(array: jax.Array, index: int) -> jax.Array:
    """The array on another device; a copy also where it is the same one, so that no two storages share an array."""
    import jax

    with jax.enable_x64(True):
        return jax.device_put(array, jax_devices()[index], may_alias=False)


def to_devices(tensor: torch.Tensor, wanted: jax.sharding.Sharding, own_part: bool = False) -> jax.Array:
    """A private copy of a CPU tensor that lies over the devices as is wanted. Each process gives all of it, or its own part."""
    import jax

    values = np.array(host_array(tensor), copy=True, order="C")
    with jax.enable_x64(True):
        if own_part:
            return jax.make_array_from_process_local_data(wanted, values)
        return jax.make_array_from_callback(values.shape, wanted, lambda index: values[index])


def assembled(shape: tuple[int, ...], wanted: jax.sharding.Sharding, parts: dict[jax.Device, torch.Tensor]) -> jax.Array:
    """The array of which each of this process's devices is given its part."""
    import jax

    with jax.enable_x64(True):
        there = [jax.device_put(np.array(host_array(part), copy=True, order="C"), device) for device, part in parts.items()]
        return jax.make_array_from_single_device_arrays(shape, wanted, there)
