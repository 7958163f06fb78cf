"""Fourier transforms against CPU eager."""

from __future__ import annotations

import functools

import torch
from structured import Family

aten = torch.ops.aten
OPS = tuple(f"fft.{name}{rank}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n"))
CASES = {
    **{
        f"_fft_c2c.default {normalization} {forward}": functools.partial(
            lambda n, f: aten._fft_c2c(torch.randn(3, 4, 5, dtype=torch.complex64), [0, 2], n, f), normalization, forward
        )
        for normalization in range(3)
        for forward in (True, False)
    },
    "_fft_r2c.default two-sided": lambda: aten._fft_r2c(torch.randn(3, 6), [0, 1], 1, False),
    "_fft_c2r.default odd": lambda: aten._fft_c2r(torch.randn(3, 4, dtype=torch.complex64), [0, 1], 2, 7),
}
FAMILY = Family("fft", ops=OPS, cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()
