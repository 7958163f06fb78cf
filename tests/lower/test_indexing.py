"""Reads and writes at given positions against CPU eager."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from structured import Family

from surestep.lower.spec import Out

aten = torch.ops.aten
OPS = (
    "gather",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "index_reduce",
    "index_put",
    "take",
    "take_along_dim",
    "put",
    "masked_scatter",
    "nonzero_static",
    "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate",
    "__getitem__",
)


def x():
    return torch.randn(4, 5, 6)


def at(*values):
    return torch.tensor(values)


ROWS, COLUMNS = at(0, -1, 2), at(1, 1, -5)
MASK = torch.rand(4, 5) > 0.5
CASES = {
    "scatter.reduce": lambda: aten.scatter.reduce(torch.randn(3, 4), 1, at((0, 0), (1, 1)), torch.randn(2, 2), reduce="add"),
    "_index_put_impl.default": lambda: aten._index_put_impl(x(), [ROWS], torch.randn(5, 6), True),
    "_unsafe_index.Tensor": lambda: aten._unsafe_index(x(), [None, ROWS, None]),
    "_unsafe_index_put.default": lambda: aten._unsafe_index_put(x(), [ROWS, COLUMNS], torch.tensor(2.0)),
    "index_reduce.default by rows": lambda: aten.index_reduce(x(), 1, at(0, 4, 0), torch.randn(4, 3, 6), "mean", include_self=False),
    "scatter.value_reduce": lambda: aten.scatter.value_reduce(torch.randn(3, 4), 1, at((0, 0), (1, 1), (2, 3)), 2.5, reduce="multiply"),
    "index.Tensor neighbours": lambda: x()[:, ROWS, COLUMNS],
    "index.Tensor apart": lambda: x()[ROWS, :, COLUMNS],
    "index.Tensor broadcast": lambda: x()[ROWS[:, None], COLUMNS],
    "index.Tensor 0-d": lambda: aten.index(x(), [None, torch.tensor(-2)]),
    "index_put.default number at a mask": lambda: aten.index_put(x(), [MASK], torch.tensor(7.0)),
    "index_put.default rows at a mask": lambda: aten.index_put(x(), [MASK], torch.randn(6)),
    "index_put.default every row at a mask": lambda: aten.index_put(x(), [MASK], torch.randn(int(MASK.sum()), 6)),
    "index_put.default added at a mask": lambda: aten.index_put(x(), [MASK], torch.randn(int(MASK.sum()), 6), True),
    "index_put.default mask behind": lambda: aten.index_put(x(), [None, torch.rand(5) > 0.5], torch.randn(1, 6)),
    "index_put.default whole mask": lambda: aten.index_put(x(), [torch.rand(4, 5, 6) > 0.5], torch.tensor(0.0)),
    "index_put.default mask and places": lambda: aten.index_put(x(), [at(True, False, True, True).bool(), ROWS], torch.randn(3, 6)),
    "index_put.default nan stays out": lambda: aten.index_put(
        torch.full((3,), float("nan")), [at(True, False, True).bool()], torch.tensor(0.0)
    ),
    "index_put.default promotes nothing": lambda: aten.index_put(torch.zeros(3, dtype=torch.int64), [at(1)], at(5)),
    "scatter_add.default repeated": lambda: aten.scatter_add(torch.zeros(3), 0, at(0, 0, 2, 0), torch.randn(5)),
    "gather.default smaller": lambda: aten.gather(x(), 1, torch.zeros(2, 7, 3, dtype=torch.int64)),
    "gather.default empty": lambda: aten.gather(x(), 1, torch.zeros(0, 0, 0, dtype=torch.int64)),
    "masked_scatter_backward.default": lambda: aten.masked_scatter_backward(torch.randn(4, 5), MASK, [25]),
}
FAMILY = Family("indexing", ops=OPS, cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()


def test_reads_out_of_range_are_nan_and_writes_are_dropped():
    with jax.enable_x64(True):
        x, out = jnp.arange(3.0), Out((2,), np.dtype(np.float64))
        assert np.isnan(FAMILY.table["index_select.default"].function(out, x, 0, jnp.asarray([3, 7]))).all()
        assert np.isnan(FAMILY.table["gather.default"].function(out, x, 0, jnp.asarray([3, 7]))).all()
        assert np.isnan(FAMILY.table["index.Tensor"].function(out, x, [jnp.asarray([3, -4])])).all()
        written = FAMILY.table["index_put.default"].function(Out((3,), x.dtype), x, [jnp.asarray([3, -4])], jnp.asarray(9.0))
        np.testing.assert_array_equal(written, x)
