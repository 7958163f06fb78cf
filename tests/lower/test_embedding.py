"""Embeddings and their gradients against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten
INDICES = torch.tensor([[1, 3, 3], [0, 3, 1]])
FAMILY = Family(
    "embedding",
    ops=("nn.functional.embedding",),
    cases={
        "embedding_dense_backward.default": lambda: aten.embedding_dense_backward(torch.randn(2, 3, 4), INDICES, 5, -1, False),
        "embedding_dense_backward.default padding": lambda: aten.embedding_dense_backward(torch.randn(2, 3, 4), INDICES, 5, 3, False),
        "embedding_dense_backward.default frequency": lambda: aten.embedding_dense_backward(torch.randn(2, 3, 4), INDICES, 5, 0, True),
        "embedding.default 0-d": lambda: aten.embedding(torch.randn(5, 4), torch.tensor(2)),
        "embedding_renorm.default": lambda: aten.embedding_renorm(torch.randn(5, 4), INDICES.reshape(-1), 1.2, 2.0),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
