"""Sorting, ranks and search against CPU eager."""

from __future__ import annotations

import torch
from elementwise import Elementwise

NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor([[3.0, NAN, -INF, 3.0, INF, -0.0, 0.0], [2.0, 1.0, 2.0, 2.0, 1.0, 1.0, 5.0]])
INTS = torch.tensor([5, -3, 5, 2**40, 0, -3])
BOOLS = torch.tensor([True, False, True])
EDGES = torch.tensor([1.0, 2.0, 2.0, 4.0])
WANTED = torch.tensor([NAN, INF, -INF, 2.0, 1.5, 4.0, 0.0])

FAMILY = Elementwise(
    "search",
    dtypes=(torch.float64, torch.bool),
    ops=("sort", "msort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "searchsorted", "bucketize", "isin", "histc"),
    cases={
        "sort.stable": lambda: (
            [torch.sort(ROWS, stable=True, descending=d) for d in (False, True)] + [torch.sort(INTS, stable=True), BOOLS.sort(stable=True)]
        ),
        "sort.default scalar": lambda: [torch.tensor(1.0).sort(), torch.ones(0, 2).sort(0), ROWS.sort(0)],
        "topk.default special": lambda: [ROWS.topk(3, largest=largest) for largest in (True, False)],
        "topk.default int": lambda: [INTS.topk(4), INTS.topk(4, largest=False)],
        "topk.default shapes": lambda: [torch.tensor(2.0).topk(1), ROWS.topk(0), ROWS.topk(2, dim=0), ROWS.T.topk(2, dim=-1)],
        "topk.default byte": lambda: torch.tensor([0, 255, 3], dtype=torch.uint8).topk(2, largest=False),
        "kthvalue.default special": lambda: [ROWS.kthvalue(k, keepdim=k > 3) for k in (1, 4, 7)] + [torch.tensor(1).kthvalue(1)],
        "median.dim": lambda: [ROWS.median(1), ROWS.median(0, keepdim=True), INTS.median(0), torch.tensor(1.0).median(0)],
        "nanmedian.dim": lambda: [ROWS.nanmedian(1), torch.full((2, 3), NAN).nanmedian(0)],
        "median.default special": lambda: [ROWS.median(), ROWS[1].median(), INTS.median(), torch.tensor([]).median()],
        "mode.default special": lambda: [ROWS[1].mode(), INTS.mode(keepdim=True), BOOLS.mode()],
        "searchsorted.Tensor special": lambda: [torch.searchsorted(EDGES, WANTED, right=right) for right in (False, True)],
        "searchsorted.Tensor batch": lambda: torch.searchsorted(
            EDGES.expand(2, 3, 4).contiguous(), WANTED.expand(2, 3, 7).contiguous(), side="right", out_int32=True
        ),
        "searchsorted.Tensor sorter": lambda: torch.searchsorted(EDGES.flip(0), WANTED, sorter=torch.tensor([3, 2, 1, 0])),
        "searchsorted.Scalar": lambda: [torch.searchsorted(EDGES, 2), torch.searchsorted(EDGES, 2.5, right=True)],
        "bucketize.Scalar": lambda: [torch.bucketize(2, EDGES), torch.bucketize(2.0, torch.tensor([1, 2, 3]), right=True)],
        "bucketize.Tensor empty": lambda: [torch.bucketize(WANTED, EDGES[:0]), torch.bucketize(WANTED[:0], EDGES)],
        "isin.Tensor_Tensor special": lambda: [torch.isin(ROWS, torch.tensor([NAN, 1.0, 0.0])), torch.isin(INTS, INTS[:0], invert=True)],
        "isin.Tensor_Scalar": lambda: [torch.isin(INTS, 5), torch.isin(INTS, 5, invert=True)],
        "isin.Scalar_Tensor": lambda: torch.isin(5, INTS),
        "histc.default": lambda: [torch.histc(EDGES, 4), torch.histc(EDGES, 3, 1, 3), torch.histc(torch.ones(3), 5)],
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
