"""Bags of embeddings and their gradients against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten
INDICES, OFFSETS = torch.tensor([1, 2, 5, 1, 3, 3]), torch.tensor([0, 2, 2])
NAMES = "_embedding_bag.default _embedding_bag_forward_only.default _embedding_bag_backward.default"


def bag(mode, weights=None, padding_idx=-1, include_last=False):
    table, offsets = torch.randn(6, 3), torch.cat([OFFSETS, torch.tensor([6])]) if include_last else OFFSETS
    arguments = (table, INDICES, offsets, False, mode, False, weights, include_last, padding_idx)
    aten._embedding_bag_forward_only(*arguments)
    result, offset2bag, bag_size, sources = aten._embedding_bag(*arguments)
    grad, saved = torch.randn_like(result), (offset2bag, bag_size, sources)
    aten._embedding_bag_backward(grad, INDICES, OFFSETS, *saved, 6, False, mode, False, weights, padding_idx)
    if mode == 0 and weights is not None and padding_idx >= 0:
        aten._embedding_bag_per_sample_weights_backward(grad, table, INDICES, offsets, offset2bag, mode, padding_idx)


WEIGHTED = f"{NAMES} _embedding_bag_per_sample_weights_backward.default"
CASES = {
    f"{NAMES} summed": lambda: bag(0),
    f"{NAMES} averaged": lambda: bag(1),
    f"{NAMES} maximized": lambda: bag(2),
    f"{WEIGHTED} weighted": lambda: bag(0, torch.rand(6), padding_idx=3),
    f"{NAMES} averaged with padding": lambda: bag(1, padding_idx=3),
    f"{NAMES} maximized with padding": lambda: bag(2, padding_idx=5),
    f"{NAMES} with the last offset": lambda: bag(1, include_last=True),
    "_embedding_bag_dense_backward.default": lambda: aten._embedding_bag_dense_backward(
        torch.randn(3, 3), INDICES, torch.tensor([0, 0, 2, 2, 2, 2]), torch.tensor([2, 0, 4]), torch.tensor([2, 0, 4]), 6, False, 1, None, 3
    ),
}
FAMILY = Family("embeddingbag", ops=("nn.functional.embedding_bag",), cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()


def test_rows_that_come_often_count_less():
    """The CPU divides by the wrong rows' counts here; an embedding with the same frequencies is right."""
    grad, expected = torch.randn(3, 3), torch.zeros(6, 3)
    bags = torch.tensor([0, 0, 2, 2, 2, 2])
    for index, bag_index in zip(INDICES.tolist(), bags.tolist(), strict=True):
        expected[index] += grad[bag_index] / (INDICES == index).sum()
    saved = (bags, torch.tensor([2, 0, 4]), torch.tensor([2, 0, 4]))
    FAMILY.check_lowered("_embedding_bag_dense_backward.default", expected, grad, INDICES, *saved, 6, True, 0, None)
