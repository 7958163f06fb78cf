"""Copies of complex views against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten


def z():
    return torch.randn(3, 4, dtype=torch.complex64)


FAMILY = Family(
    "complex",
    cases={
        "view_as_real_copy.default": lambda: aten.view_as_real_copy(z()),
        "view_as_complex_copy.default": lambda: aten.view_as_complex_copy(torch.randn(3, 4, 2)),
        "_conj_copy.default": lambda: aten._conj_copy(z()),
        "_neg_view_copy.default": lambda: aten._neg_view_copy(z()),
    },
    unreached={"conj_physical.default"},  # on the CPU this becomes `_conj_physical`; see tests/conformance/test_found.py
)

test_samples, test_case, test_keys = FAMILY.tests()
