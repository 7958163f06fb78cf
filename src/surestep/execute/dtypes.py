"""The dtypes that PyTorch and XLA share, exactly: int64 stays int64, float64 stays float64."""

from __future__ import annotations

import functools

import numpy as np
import torch


@functools.cache
def _to_jax() -> dict[torch.dtype, np.dtype]:
    import ml_dtypes  # some milliseconds, which `import surestep` need not take

    return {
        torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
        torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
        torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
        torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
        torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
        **{torch_dtype: np.dtype(numpy_type) for torch_dtype, numpy_type in _NUMPYS_OWN},
    }


@functools.cache
def _to_torch() -> dict[np.dtype, torch.dtype]:
    return {numpy_dtype: torch_dtype for torch_dtype, numpy_dtype in _to_jax().items()}


_NUMPYS_OWN: tuple[tuple[torch.dtype, type], ...] = (
    (torch.bool, np.bool_),
    (torch.uint8, np.uint8),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.int8, np.int8),
    (torch.int16, np.int16),
    (torch.int32, np.int32),
    (torch.int64, np.int64),
    (torch.float16, np.float16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
)


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype that JAX uses for a PyTorch dtype; ``TypeError`` where XLA has none (quantized, complex32)."""
    try:
        return _to_jax()[dtype]
    except KeyError:
        instead = (
            "Use torch.complex64" if dtype is torch.complex32 else "Convert the tensor before it is moved, with .dequantize() or .to(dtype)"
        )
        raise TypeError(f"the xla device has no dtype {dtype}: XLA can't represent it. {instead}.") from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The PyTorch dtype of a JAX array's dtype; ``TypeError`` where PyTorch has none."""
    try:
        return _to_torch()[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"PyTorch has no dtype for JAX's {dtype}") from None
