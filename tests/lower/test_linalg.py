"""Factorizations and linear systems against CPU eager."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from structured import Family

aten = torch.ops.aten
OPS = (
    "linalg.cholesky_ex",
    "cholesky_solve",
    "cholesky_inverse",
    "linalg.lu_factor_ex",
    "linalg.lu",
    "lu_unpack",
    "linalg.lu_solve",
    "linalg.inv_ex",
    "linalg.solve_triangular",
    "triangular_solve",
    "linalg.qr",
    "linalg.householder_product",
    "geqrf",
    "ormqr",
)
ROWS = torch.linspace(0.5, 2, 4)
CASES = {
    "_cholesky_solve_helper.default": lambda: aten._cholesky_solve_helper(torch.randn(4, 2), torch.diag(ROWS) + 0.1, False),
    "linalg_lu_factor_ex.default singular": lambda: torch.linalg.lu_factor_ex(torch.zeros(2, 3, 3)),
    "linalg_qr.default": lambda: [torch.linalg.qr(torch.randn(5, 3), mode) for mode in ("reduced", "complete", "r")],
}
FAMILY = Family("linalg", ops=OPS, cases=CASES, unreached=("_linalg_svd.default", "_linalg_eigh.default", "linalg_matrix_exp.default"))

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (0, 3), (2, 3, 0)])
def test_svd(shape, full, dtype):
    a = torch.randn(shape, dtype=dtype)
    expected = aten._linalg_svd(a, full)
    u, s, vh = FAMILY.lowered("_linalg_svd.default", expected, a, full)
    torch.testing.assert_close(s, expected[1], rtol=1e-4, atol=1e-4)
    rank = s.shape[-1]
    torch.testing.assert_close(u[..., :rank] * s.unsqueeze(-2).to(dtype) @ vh[..., :rank, :], a, rtol=1e-4, atol=1e-4)
    values = FAMILY.lowered("_linalg_svd.default", aten._linalg_svd(a, full, False), a, full, False)[1]
    torch.testing.assert_close(values, s, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("half", ["L", "U"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (0, 0)])
def test_eigh(shape, half, dtype):
    a = torch.randn(shape, dtype=dtype)
    one = a.tril() if half == "L" else a.triu().mH
    hermitian = one.tril(-1) + one.tril(-1).mH + torch.diag_embed(one.diagonal(dim1=-2, dim2=-1).real).to(dtype)
    values, vectors = FAMILY.lowered("_linalg_eigh.default", aten._linalg_eigh(a, half), a, half)
    torch.testing.assert_close(hermitian @ vectors, vectors * values.unsqueeze(-2).to(dtype), rtol=1e-4, atol=1e-4)
    alone = FAMILY.lowered("_linalg_eigh.default", aten._linalg_eigh(a, half, False), a, half, False)[0]
    torch.testing.assert_close(alone, values, rtol=1e-4, atol=1e-4)


def test_what_is_not_positive_definite_says_so():
    a = torch.stack([torch.eye(3), -torch.eye(3)])
    factors, info = FAMILY.lowered("linalg_cholesky_ex.default", torch.linalg.cholesky_ex(a), a)
    torch.testing.assert_close(factors[0], torch.eye(3))
    assert info.tolist() == [0, 1]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3), (torch.complex64, 1e-3)])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3, 3), (0, 0)])
def test_matrix_exp(shape, dtype, tolerance):
    a = 3 * torch.randn(shape, dtype=dtype)
    expected = torch.linalg.matrix_exp(a)
    (result,) = FAMILY.lowered("linalg_matrix_exp.default", expected, a)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


MANY = """
import sys
import torch
import surestep

torch.manual_seed(0)
general = [torch.randn(4, 60, 60) for _ in range(30)]
definite = [x @ x.mT + 60 * torch.eye(60) for x in general]
kinds = {
    "cholesky": (torch.linalg.cholesky, definite),
    "solve": (lambda x: torch.linalg.solve_triangular(x, x, upper=False), definite),
    "lu": (lambda x: torch.linalg.lu_factor(x)[0], definite),
    "qr": (lambda x: torch.linalg.qr(x)[1].abs(), general),
    "eigh": (torch.linalg.eigvalsh, definite),
    "svd": (torch.linalg.svdvals, general),
}
for name, (function, matrices) in kinds.items():
    moved = [x.to("xla") for x in matrices]
    for _ in range(5):
        with surestep.step():
            results = [function(x) for x in moved]
        surestep.sync(wait=True)
    torch.testing.assert_close(results[-1].cpu(), function(matrices[-1]), rtol=1e-3, atol=1e-3)
    print(name, flush=True)
"""


def test_many_batched_factorizations_in_one_program_end():
    """Two of jaxlib's calls at once, on two threads, waited for each other's threads for ever."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["cholesky", "solve", "lu", "qr", "eigh", "svd"], done.stderr
