"""Operands by hand, of the lowered operations that neither PyTorch's database nor operands made for a schema reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def real(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers of both signs, none alike."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 % count) - count / 2.3).reshape(shape).div(count).to(dtype)


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values)


image, large, volume, matrix = (1, 2, 4, 4), (1, 2, 8, 8), (1, 1, 2, 4, 4), real(3, 3) + 2 * torch.eye(3, dtype=torch.float64)
windows = [1, 1], [0, 0], [1, 1]
grid = real(1, 3, 3, 2, dtype=torch.float32) * 2
norm = (real(4, 3), real(3), real(3))
OPERANDS: dict[str, Callable[[], tuple]] = {
    "_addmm_activation.default": lambda: (real(3), real(2, 4), real(4, 3)),
    "_conj_copy.default": lambda: (torch.complex(real(2, 3), real(2, 3)),),
    "_convolution.default": lambda: (real(*image), real(3, 2, 2, 2), real(3), *windows, False, [0, 0], 1, False, False, True, True),
    "_fused_rms_norm.default": lambda: (real(4, 3), [3], real(3), 1e-5),
    "_grid_sampler_2d_cpu_fallback.default": lambda: (real(*image).float(), grid, 0, 0, False),
    "_grid_sampler_2d_cpu_fallback_backward.default": lambda: (real(1, 2, 3, 3).float(), real(*image).float(), grid, 0, 0, False),
    "_int_mm.default": lambda: (torch.arange(-8, 8, dtype=torch.int8).reshape(2, 8), torch.arange(24, dtype=torch.int8).reshape(8, 3)),
    "_is_all_true.default": lambda: (real(3) > 0,),
    "_is_any_true.default": lambda: (real(3) > 0,),
    "_native_batch_norm_legit.no_stats": lambda: (*norm, True, 0.1, 1e-5),
    "_native_batch_norm_legit_functional.default": lambda: (*norm, real(3), real(3).abs() + 1, True, 0.1, 1e-5),
    "_reshape_copy.default": lambda: (real(2, 6), [3, 4]),
    "_unsafe_index.Tensor": lambda: (real(4, 3), [whole(2, 0), None]),
    "_unsafe_index_put.default": lambda: (real(4, 3), [whole(2, 0), None], real(2, 3), True),
    "_upsample_bicubic2d_aa.default": lambda: (real(*image), [3, 6], False),
    "_upsample_bicubic2d_aa_backward.default": lambda: (real(1, 2, 3, 6), [3, 6], list(image), False),
    "_upsample_bilinear2d_aa.default": lambda: (real(*image), [3, 6], False),
    "_upsample_lanczos2d_aa.default": lambda: (real(*image), [3, 6], False),
    "_upsample_lanczos2d_aa_backward.default": lambda: (real(1, 2, 3, 6), [3, 6], list(image), False),
    "_upsample_nearest_exact2d.default": lambda: (real(*image), [3, 6]),
    "_upsample_nearest_exact2d_backward.default": lambda: (real(1, 2, 3, 6), [3, 6], list(image)),
    "_upsample_nearest_exact3d.default": lambda: (real(*volume), [3, 6, 2]),
    "_upsample_nearest_exact3d_backward.default": lambda: (real(1, 1, 3, 6, 2), [3, 6, 2], list(volume)),
    "upsample_nearest3d.default": lambda: (real(*volume), [3, 6, 2]),
    "upsample_nearest3d_backward.default": lambda: (real(1, 1, 3, 6, 2), [3, 6, 2], list(volume)),
    "affine_grid_generator.default": lambda: (real(1, 2, 3), [1, 2, 4, 3], False),
    "bucketize.Scalar": lambda: (1.5, real(5).sort()[0]),
    "searchsorted.Scalar": lambda: (real(5).sort()[0], 0.1),
    "cholesky_inverse.default": lambda: (matrix.tril(),),
    "cholesky_solve.default": lambda: (real(3, 2), matrix.tril()),
    "col2im.default": lambda: (real(1, 8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "im2col.default": lambda: (real(*image), [2, 2], [1, 1], [0, 0], [1, 1]),
    "div.Scalar_mode": lambda: (torch.arange(-3, 4), 2),
    "fill.Tensor": lambda: (real(2, 3), torch.tensor(1.5, dtype=torch.float64)),
    "norm.ScalarOpt_dim_dtype": lambda: (real(2, 3, dtype=torch.float32), 2, [1], False),
    "norm.ScalarOpt_dtype": lambda: (real(2, 3, dtype=torch.float32), 2),
    "reflection_pad2d.default": lambda: (real(*image), [1, 2, 0, 1]),
    "reflection_pad2d_backward.default": lambda: (real(1, 2, 5, 7), real(*image), [1, 2, 0, 1]),
    "reflection_pad3d.default": lambda: (real(*volume), [1, 2, 0, 1, 1, 0]),
    "reflection_pad3d_backward.default": lambda: (real(1, 1, 3, 5, 7), real(*volume), [1, 2, 0, 1, 1, 0]),
    "replication_pad3d.default": lambda: (real(*volume), [1, 2, 0, 1, 1, 0]),
    "replication_pad3d_backward.default": lambda: (real(1, 1, 3, 5, 7), real(*volume), [1, 2, 0, 1, 1, 0]),
    "scatter.value_reduce": lambda: (real(2, 3), 0, whole(0, 1, 1)[None], 2.0),
    "squeeze_copy.dims": lambda: (real(1, 3, 1), [0, 2]),
    "_weight_norm_interface.default": lambda: (real(2, 3), real(2, 1)),
    "_weight_norm_interface_backward.default": lambda: (real(2, 3), real(2, 3), real(2, 1), real(2, 1).abs(), 0),
    "view_as_complex_copy.default": lambda: (real(3, 2),),
    "view_as_real_copy.default": lambda: (torch.complex(real(2, 3), real(2, 3)),),
}  # fmt: skip
KEYWORDS: dict[str, dict[str, Any]] = {
    "div.Scalar_mode": {"rounding_mode": "floor"},
    "norm.ScalarOpt_dim_dtype": {"dtype": torch.float64},
    "norm.ScalarOpt_dtype": {"dtype": torch.float64},
    "scatter.value_reduce": {"reduce": "multiply"},
}
