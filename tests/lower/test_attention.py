"""Attention in one piece and its gradient against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten


def attention(mask=None, is_causal=False, scale=None, dtype=torch.float32, length=5):
    query, key, value = (torch.randn(2, 3, n, 8).to(dtype) for n in (length, 7, 7))
    options = {"attn_mask": mask, "scale": scale}
    result, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, **options)
    aten._scaled_dot_product_flash_attention_for_cpu_backward(
        torch.randn(result.shape).to(dtype), query, key, value, result, logsumexp, 0.0, is_causal, **options
    )


KEY = "_scaled_dot_product_flash_attention_for_cpu.default _scaled_dot_product_flash_attention_for_cpu_backward.default"
FAMILY = Family(
    "attention",
    ops=("nn.functional.scaled_dot_product_attention",),
    cases={
        KEY: attention,
        f"{KEY} causal": lambda: attention(is_causal=True, length=7),
        f"{KEY} scaled": lambda: attention(scale=0.3),
        f"{KEY} mask": lambda: attention(torch.randn(2, 1, 5, 7)),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
