"""The dtypes that PyTorch and XLA share, exactly: int64 stays int64, float64 stays float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_PAIRS: tuple[tuple[torch.dtype, type], ...] = (
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
    (torch.bfloat16, ml_dtypes.bfloat16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
)
_TO_JAX = {torch_dtype: np.dtype(numpy_type) for torch_dtype, numpy_type in _PAIRS}
_TO_TORCH = {numpy_dtype: torch_dtype for torch_dtype, numpy_dtype in _TO_JAX.items()}


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype that JAX uses for a PyTorch dtype; ``TypeError`` where XLA has none (quantized, complex32)."""
    try:
        return _TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"the xla device has no dtype {dtype}: XLA can't represent it. Convert the tensor before it is moved.") from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The PyTorch dtype of a JAX array's dtype; ``TypeError`` where PyTorch has none."""
    try:
        return _TO_TORCH[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"PyTorch has no dtype for JAX's {dtype}") from None
