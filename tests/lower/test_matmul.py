"""Matrix and vector products against CPU eager."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from structured import Family

from surestep.lower.spec import Out

aten = torch.ops.aten
OPS = (
    "mm",
    "bmm",
    "mv",
    "dot",
    "vdot",
    "addmm",
    "addmv",
    "addbmm",
    "baddbmm",
    "addr",
    "nn.functional.bilinear",
    "nn.functional.linear",
    "matmul",
)
NAN = float("nan")


def x(*shape):
    return torch.randn(*shape)


def eight_bits(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


CASES = {
    "_addmm_activation.default": lambda: aten._addmm_activation(x(4), x(3, 5), x(5, 4), beta=0.5, alpha=2),
    "_addmm_activation.default gelu": lambda: aten._addmm_activation(x(4), x(3, 5), x(5, 4), use_gelu=True),
    "_int_mm.default": lambda: aten._int_mm(eight_bits(32, 16), eight_bits(16, 24)),
    "mm.default exact ints": lambda: torch.mm(torch.full((2, 2), 2**40 + 1), torch.full((2, 2), 3)),
    "mm.default empty": lambda: torch.mm(x(3, 0), x(0, 2)),
    "addmm.default beta 0 leaves nan out": lambda: torch.addmm(torch.full((3, 2), NAN), x(3, 4), x(4, 2), beta=0),
    "addmm.default empty": lambda: torch.addmm(x(2), x(3, 0), x(0, 2), beta=0.5),
    "addmm.default bfloat16": lambda: torch.addmm(x(2).bfloat16(), x(3, 64).bfloat16(), x(64, 2).bfloat16()),
}
# The CPU has no kernel of these: tests below, and in tests/tensor/test_linear.py.
UNREACHED = ("mm.dtype", "bmm.dtype", "addmm.dtype", "baddbmm.dtype", "linear.default", "linear_backward.default")
FAMILY = Family("matmul", ops=OPS, cases=CASES, unreached=UNREACHED)

test_samples, test_case, test_keys = FAMILY.tests()


def test_products_in_another_dtype():
    """CUDA's only in PyTorch: the half precisions multiplied into float32."""
    with jax.enable_x64(True):
        x, y, out = jnp.full((2, 3, 4), 0.1, jnp.bfloat16), jnp.full((2, 4, 5), 0.3, jnp.bfloat16), Out((2, 3, 5), np.dtype(np.float32))
        exact = np.matmul(np.asarray(x, np.float32), np.asarray(y, np.float32))
        one = Out((3, 5), np.dtype(np.float32))
        for result, expected in (
            (FAMILY.table["bmm.dtype"].function(out, x, y, torch.float32), exact),
            (FAMILY.table["baddbmm.dtype"].function(out, jnp.ones((5,)), x, y, torch.float32), exact + 1),
            (FAMILY.table["mm.dtype"].function(one, x[0], y[0], torch.float32), exact[0]),
            (FAMILY.table["addmm.dtype"].function(one, jnp.ones((5,)), x[0], y[0], torch.float32, alpha=2), 2 * exact[0] + 1),
        ):
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_linear_in_one_piece():
    """A composite here: a device can take it whole."""
    for arguments in ((x(2, 3, 4), x(5, 4), x(5)), (x(4), x(5, 4), None)):
        FAMILY.check_lowered("linear.default", torch.nn.functional.linear(*arguments), *arguments)
