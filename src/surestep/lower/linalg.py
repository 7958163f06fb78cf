"""Factorizations and solutions of linear systems, with LAPACK's conventions: pivots count from 1, ``info`` names what failed."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import lax

from surestep.lower.shared import opmath
from surestep.lower.spec import lowering

_INT32 = np.dtype(np.int32)


def _zeros(out):
    return tuple(jnp.zeros(o.shape, o.dtype) for o in out)


def _identity(out):
    """Identity matrices, or zeros where ``out`` isn't one of matrices: the factors of an empty matrix."""
    if len(out.shape) < 2:
        return jnp.zeros(out.shape, out.dtype)
    return jnp.broadcast_to(jnp.eye(*out.shape[-2:], dtype=out.dtype), out.shape)


def _adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _batched(shape, *matrices):
    """Matrices with the batch dimensions ``shape``, which XLA doesn't broadcast."""
    return [jnp.broadcast_to(m, (*shape, *m.shape[-2:])) for m in matrices]


def _each(factorize, matrix, *more):
    """``factorize(matrix, *more)`` of each matrix of a batch.

    On the CPU one after the other: jaxlib's calls into LAPACK wait for the batch's parts in the pool of threads that runs the program's
    operations. Two such calls at once, where there are two threads, wait for each other for ever.
    """
    batch = matrix.shape[:-2]
    if math.prod(batch) < 2:
        return factorize(matrix, *more)

    def one_by_one(*operands):
        flat = tuple(operand.reshape(-1, *operand.shape[len(batch) :]) for operand in operands)
        results = lax.map(lambda each: factorize(*each), flat)
        return jax.tree.map(lambda result: result.reshape(*batch, *result.shape[1:]), results)

    return lax.platform_dependent(matrix, *more, cpu=one_by_one, default=factorize)


def _solve_triangular(a, b, *, upper, left=True, unit=False, adjoint=False):
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = _batched(batch, a, b)
    if b.size == 0 or a.size == 0:
        return jnp.zeros(b.shape, b.dtype)
    sides = {"left_side": left, "lower": not upper, "unit_diagonal": unit, "transpose_a": adjoint, "conjugate_a": adjoint}
    return _each(functools.partial(lax.linalg.triangular_solve, **sides), a, b)


def cholesky_ex(out, a, *, upper=False, check_errors=False):
    """A matrix that isn't positive definite gives nan and info 1: XLA doesn't say which minor failed."""
    if a.size == 0:
        return _zeros(out)
    lower = _each(functools.partial(lax.linalg.cholesky, symmetrize_input=False), _adjoint(a) if upper else a)
    info = jnp.isnan(jnp.diagonal(lower, axis1=-2, axis2=-1).real).any(-1).astype(_INT32)
    return (_adjoint(lower) if upper else lower), info


def cholesky_solve(out, b, factor, upper=False):
    first = _solve_triangular(factor, b, upper=upper, adjoint=upper)
    return _solve_triangular(factor, first, upper=upper, adjoint=not upper)


def cholesky_inverse(out, factor, upper=False):
    return cholesky_solve(out, jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape), factor, upper)


def _lu(a):
    """The packed factors, pivots from 1, the permutation, and the number of the first pivot that is zero (or 0)."""
    packed, pivots, permutation = _each(lax.linalg.lu, a)
    zero = jnp.diagonal(packed, axis1=-2, axis2=-1) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0).astype(_INT32)
    return packed, pivots.astype(_INT32) + 1, permutation, info


def lu_factor_ex(out, a, *, pivot=True, check_errors=False):
    _needs_pivots(pivot)
    if a.size == 0:
        return _zeros(out)
    packed, pivots, _, info = _lu(a)
    return packed, pivots, info


def _needs_pivots(pivot):
    if not pivot:
        raise ValueError("LU without pivoting is for CUDA only in PyTorch, and not lowered")


def _unpacked(packed, permutation, dtype):
    rows, columns = packed.shape[-2:]
    rank = min(rows, columns)
    lower = jnp.tril(packed[..., :rank], -1) + jnp.eye(rows, rank, dtype=dtype)
    onehot = permutation[..., None, :] == jnp.arange(rows)[:, None]
    return onehot.astype(dtype), lower, jnp.triu(packed[..., :rank, :])


def lu(out, a, *, pivot=True):
    _needs_pivots(pivot)
    if a.size == 0:
        return _identity(out[0]), _identity(out[1]), jnp.zeros(out[2].shape, a.dtype)
    packed, _, permutation, _ = _lu(a)
    return _unpacked(packed, permutation, a.dtype)


def _permutation(pivots, rows):
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


def lu_unpack(out, packed, pivots, unpack_data=True, unpack_pivots=True):
    if packed.size == 0:
        return _zeros(out)
    parts = _unpacked(packed, _permutation(pivots, packed.shape[-2]), packed.dtype)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(part if want else jnp.zeros(o.shape, o.dtype) for part, want, o in zip(parts, wanted, out, strict=True))


def _lu_solve(packed, permutation, b, adjoint):
    """The solution of A x = b (or of its adjoint), where the rows of A in the order ``permutation`` are L U."""
    batch = jnp.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed, b = _batched(batch, packed, b)
    permutation = jnp.broadcast_to(permutation, (*batch, permutation.shape[-1]))
    if not adjoint:
        b = jnp.take_along_axis(b, permutation[..., None], -2)
        return _solve_triangular(packed, _solve_triangular(packed, b, upper=False, unit=True), upper=True)
    x = _solve_triangular(packed, b, upper=True, adjoint=True)
    x = _solve_triangular(packed, x, upper=False, unit=True, adjoint=True)
    return jnp.take_along_axis(x, jnp.argsort(permutation, -1)[..., None], -2)


def lu_solve(out, packed, pivots, b, *, left=True, adjoint=False):
    if b.size == 0:
        return jnp.zeros(out.shape, out.dtype)
    permutation = _permutation(pivots, packed.shape[-2])
    return _lu_solve(packed, permutation, b, adjoint) if left else _adjoint(_lu_solve(packed, permutation, _adjoint(b), not adjoint))


def inv_ex(out, a, *, check_errors=False):
    if a.size == 0:
        return _zeros(out)
    packed, _, permutation, info = _lu(a)
    return _lu_solve(packed, permutation, jnp.eye(a.shape[-1], dtype=a.dtype), False), info


def solve_triangular(out, a, b, *, upper, left=True, unitriangular=False):
    return _solve_triangular(a, b, upper=upper, left=left, unit=unitriangular)


def triangular_solve(out, b, a, upper=True, transpose=False, unitriangular=False):
    (copy,) = _batched(out[1].shape[:-2], a)
    if transpose:
        a, upper = jnp.swapaxes(a, -1, -2), not upper
    return _solve_triangular(a, b, upper=upper, unit=unitriangular), copy


def qr(out, a, mode="reduced"):
    rank = min(a.shape[-2:])
    if rank == 0 or a.size == 0:
        return _identity(out[0]), jnp.zeros(out[1].shape, out[1].dtype)
    q, r = _each(functools.partial(lax.linalg.qr, full_matrices=mode == "complete"), a)
    return (jnp.zeros(out[0].shape, a.dtype) if mode == "r" else q), r


def geqrf(out, a):
    if a.size == 0:
        return _zeros(out)
    reflectors, tau = _each(functools.partial(jnp.linalg.qr, mode="raw"), a)
    return jnp.swapaxes(reflectors, -1, -2), tau


def ormqr(out, a, tau, other, left=True, transpose=False):
    """The whole orthogonal matrix: `householder_product` of a square one, whose other reflectors do nothing."""
    if 0 in out.shape or a.size == 0:
        return jnp.broadcast_to(other, out.shape)
    rows, columns = a.shape[-2:]
    square = jnp.concatenate([a, jnp.zeros((*a.shape[:-1], rows - columns), a.dtype)], -1)
    tau = jnp.concatenate([tau, jnp.zeros((*tau.shape[:-1], rows - tau.shape[-1]), tau.dtype)], -1)
    q = _each(lax.linalg.householder_product, square, tau)
    q = _adjoint(q) if transpose else q
    return jnp.matmul(*((q, other) if left else (other, q)), precision=lax.Precision.HIGHEST)


def svd(out, a, full_matrices=False, compute_uv=True, *, driver=None):
    if a.size == 0:
        return tuple(_identity(o) if compute_uv else jnp.zeros(o.shape, o.dtype) for o in out)
    if not compute_uv:
        values = _each(functools.partial(jnp.linalg.svd, compute_uv=False), a)
        return jnp.zeros(out[0].shape, out[0].dtype), values, jnp.zeros(out[2].shape, out[2].dtype)
    return tuple(_each(functools.partial(jnp.linalg.svd, full_matrices=full_matrices), a))


def eigh(out, a, UPLO="L", compute_v=True):
    if a.size == 0:
        return _zeros(out)
    lower = UPLO.upper() == "L"
    if not compute_v:
        lower_half = jnp.tril(a) if lower else _adjoint(jnp.triu(a))
        hermitian = lower_half + _adjoint(jnp.tril(lower_half, -1))
        return _each(functools.partial(jnp.linalg.eigvalsh, symmetrize_input=False), hermitian), jnp.zeros(out[1].shape, out[1].dtype)
    vectors, values = _each(functools.partial(lax.linalg.eigh, lower=lower, symmetrize_input=False), a)
    return values, vectors


def householder_product(out, a, tau):
    return _each(lax.linalg.householder_product, a, tau) if a.size else jnp.zeros(out.shape, out.dtype)


def matrix_exp(out, a):
    with jax.default_matmul_precision("highest"):
        return _each(jax.scipy.linalg.expm, a.astype(opmath(a.dtype))).astype(a.dtype) if a.size else a


TABLE = {
    "linalg_cholesky_ex.default": lowering(cholesky_ex),
    "cholesky_solve.default": lowering(cholesky_solve),
    "_cholesky_solve_helper.default": lowering(cholesky_solve),
    "cholesky_inverse.default": lowering(cholesky_inverse),
    "linalg_lu_factor_ex.default": lowering(lu_factor_ex),
    "linalg_lu.default": lowering(lu),
    "lu_unpack.default": lowering(lu_unpack),
    "linalg_lu_solve.default": lowering(lu_solve),
    "linalg_inv_ex.default": lowering(inv_ex),
    "linalg_solve_triangular.default": lowering(solve_triangular),
    "triangular_solve.default": lowering(triangular_solve),
    "linalg_qr.default": lowering(qr),
    "geqrf.default": lowering(geqrf),
    "ormqr.default": lowering(ormqr),
    "_linalg_svd.default": lowering(svd),
    "_linalg_eigh.default": lowering(eigh),
    "linalg_householder_product.default": lowering(householder_product),
    "linalg_matrix_exp.default": lowering(matrix_exp),
}
