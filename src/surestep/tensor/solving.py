"""Linear systems and determinants, by the LU factors that their derivatives expect.

PyTorch's derivatives of determinants take it that the factors are those of the transpose where the operand is contiguous and real: its
kernels save a copy so. That hangs on strides, which a lowering doesn't see.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor import host
from surestep.tensor.infer import on_meta

_aten = torch.ops.aten


def _factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT if matrix.is_contiguous() and not matrix.is_complex() else matrix)
    return lu, pivots


def _parity(pivots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The determinant of the permutation: how many rows changed places, odd or even."""
    unmoved = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device, dtype=pivots.dtype)
    return (1 - 2 * ((pivots != unmoved).sum(-1) % 2)).to(dtype)


def check_errors(args: tuple, kwargs: dict) -> None:
    """``LinAlgError`` for a singular matrix, at the user's line: what the device found is read, a counted boundary."""
    _aten._linalg_check_errors.default(host.to_cpu(args[0]), *args[1:], **kwargs)


def det(args: tuple, kwargs: dict) -> tuple[torch.Tensor, ...]:
    """Returns the determinant, and the factors."""
    on_meta(_aten._linalg_det.default, args, kwargs)
    lu, pivots = _factors(args[0])
    return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * _parity(pivots, lu.dtype), lu, pivots


def slogdet(args: tuple, kwargs: dict) -> tuple[torch.Tensor, ...]:
    """Returns the determinant's sign, the logarithm of its magnitude, and the factors."""
    on_meta(_aten._linalg_slogdet.default, args, kwargs)
    lu, pivots = _factors(args[0])
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    return diagonal.sgn().prod(-1) * _parity(pivots, lu.dtype), diagonal.abs().log().sum(-1), lu, pivots


def solve_ex(args: tuple, kwargs: dict) -> tuple[torch.Tensor, ...]:
    """Returns the solution, the factors, and which pivot was zero."""
    on_meta(_aten._linalg_solve_ex.default, args, kwargs)
    matrix, right = args
    vector = right.ndim == 1 or (right.ndim == matrix.ndim - 1 and right.shape == matrix.shape[:-1])
    lu, pivots, info = torch.linalg.lu_factor_ex(matrix)
    sides = right.unsqueeze(-1) if vector else right
    result = torch.linalg.lu_solve(lu, pivots, sides, left=kwargs.get("left", True))
    if kwargs.get("check_errors", False):
        _aten._linalg_check_errors(info, "torch.linalg.solve_ex", is_matrix=matrix.ndim == 2)
    return result.squeeze(-1) if vector else result, lu, pivots, info


def cholesky(args: tuple, kwargs: dict) -> Any:
    """The older name of ``torch.linalg.cholesky``."""
    return torch.linalg.cholesky(args[0], upper=(args[1] if len(args) > 1 else kwargs.get("upper", False)))


def pinv(matrix: torch.Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> torch.Tensor:
    """The pseudoinverse: singular values up to ``max(atol, rtol * the largest)`` count as zeros."""
    if not matrix.numel():
        return matrix.new_empty(matrix.mT.shape)
    if hermitian:
        values, right = torch.linalg.eigh(matrix)
        left, sizes = right, values.abs()
    else:
        left, values, adjoint = torch.linalg.svd(matrix, full_matrices=False)
        right, sizes = adjoint.mH, values
    least = torch.zeros((), dtype=sizes.dtype, device=sizes.device) if atol is None else atol
    if rtol is None:
        share = max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
        rtol = torch.where(least > 0, torch.zeros_like(least), torch.full_like(least, share))
    limit = torch.maximum(least.unsqueeze(-1), rtol.unsqueeze(-1) * sizes.amax(-1, keepdim=True))
    inverse = torch.where(sizes > limit, values.reciprocal(), torch.zeros_like(values))
    return (right * inverse.unsqueeze(-2)) @ left.mH
