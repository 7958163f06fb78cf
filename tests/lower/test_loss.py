"""Losses and their gradients against CPU eager."""

from __future__ import annotations

import jax
import pytest
import torch
from checks import to_jax, to_torch
from elementwise import Elementwise

from surestep.execute import dtypes
from surestep.lower.loss import TABLE
from surestep.lower.spec import Out

aten = torch.ops.aten
functional = torch.nn.functional
torch.manual_seed(0)
LOGITS = torch.randn(5, 4)
CLASSES = torch.tensor([0, 3, 2, -100, 1])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0])


def gradients(loss, x, *args, **options):
    """Forward and backward with each reduction."""

    def case():
        for reduction in ("none", "mean", "sum"):
            leaf = x.clone().requires_grad_()
            loss(leaf, *args, reduction=reduction, **options).sum().backward()

    return case


FAMILY = Elementwise(
    "loss",
    ops=(
        "nn.functional.binary_cross_entropy",
        "nn.functional.binary_cross_entropy_with_logits",
        "nn.functional.cross_entropy",
        "nn.functional.huber_loss",
        "nn.functional.mse_loss",
        "nn.functional.multi_margin_loss",
        "nn.functional.multilabel_margin_loss",
        "nn.functional.nll_loss",
        "nn.functional.smooth_l1_loss",
        "nn.functional.soft_margin_loss",
    ),
    cases={
        "nll_loss_forward.default": gradients(functional.cross_entropy, LOGITS, CLASSES, weight=WEIGHT),
        "nll_loss_forward.default ignored": gradients(functional.nll_loss, LOGITS, torch.full((5,), 2), ignore_index=2),
        "nll_loss_forward.default one": gradients(functional.nll_loss, LOGITS[0], torch.tensor(2), weight=WEIGHT),
        "nll_loss_forward.default smooth": gradients(functional.cross_entropy, LOGITS, CLASSES, label_smoothing=0.1),
        "nll_loss_forward.default bfloat16": gradients(functional.nll_loss, LOGITS.bfloat16(), CLASSES),
        "nll_loss2d_forward.default": gradients(
            functional.cross_entropy, torch.randn(2, 4, 3, 2), torch.randint(0, 4, (2, 3, 2)), weight=WEIGHT
        ),
        "nll_loss2d_backward.default": gradients(functional.nll_loss, torch.randn(1, 4, 5, 1), CLASSES.reshape(1, 5, 1)),
        "binary_cross_entropy.default certain": gradients(
            functional.binary_cross_entropy, torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
        ),
        "binary_cross_entropy_with_logits.default": gradients(
            functional.binary_cross_entropy_with_logits, LOGITS * 50, LOGITS.sigmoid(), weight=WEIGHT, pos_weight=WEIGHT + 1
        ),
        "smooth_l1_loss.default": gradients(functional.smooth_l1_loss, LOGITS, torch.zeros(5, 4), beta=0.3),
        "huber_loss.default": gradients(functional.huber_loss, LOGITS, torch.zeros(5, 4), delta=0.7),
        "mse_loss.default": gradients(functional.mse_loss, LOGITS.bfloat16(), torch.zeros(5, 4, dtype=torch.bfloat16)),
        "soft_margin_loss.default": gradients(functional.soft_margin_loss, LOGITS, LOGITS.flip(0).sign()),
        "multi_margin_loss.default": gradients(functional.multi_margin_loss, LOGITS, CLASSES.abs() % 4, weight=WEIGHT, p=2, margin=0.5),
        "multi_margin_loss.default one": gradients(functional.multi_margin_loss, LOGITS[0], torch.tensor(1)),
        "multilabel_margin_loss_forward.default": gradients(
            functional.multilabel_margin_loss, LOGITS[:2], torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2]])
        ),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("wrong", [-1, 4, 100])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_a_class_that_is_not_there_gives_nan(wrong, reduction):
    float32 = dtypes.to_jax(torch.float32)
    shape = (5,) if reduction == 0 else ()
    target = torch.tensor([0, wrong, 2, 3, 1])
    with jax.enable_x64(True):
        outs = (Out(shape, float32), Out((), float32))
        loss, total = TABLE["nll_loss_forward.default"].function(outs, to_jax(LOGITS), to_jax(target), None, reduction, -100)
        grad = TABLE["nll_loss_backward.default"].function(
            Out((5, 4), float32), to_jax(torch.ones(shape)), to_jax(LOGITS), to_jax(target), None, reduction, -100, total
        )
    assert to_torch(loss).isnan().tolist() == ([False, True, False, False, False] if reduction == 0 else True)
    assert to_torch(grad)[1].isnan().any()
