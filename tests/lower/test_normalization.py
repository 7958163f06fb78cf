"""Normalization and its gradients against CPU eager."""

from __future__ import annotations

import pytest
import torch
from structured import Family

aten = torch.ops.aten
OPS = (
    "nn.functional.batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "nn.functional.layer_norm",
    "native_layer_norm",
    "nn.functional.group_norm",
    "nn.functional.instance_norm",
    "nn.functional.rms_norm",
    "renorm",
)


def x(*shape):
    return torch.randn(*shape)


def statistics(channels=3):
    return x(channels), x(channels).abs() + 0.1


def batch_norm_backward(train, mask=(True, True, True), dtype=torch.float32):
    image, grad = (x(4, 3, 5, 5) * 2 + 7).to(dtype), x(4, 3, 5, 5).to(dtype)
    mean, var = statistics()
    _, save_mean, save_invstd = aten.native_batch_norm(image, x(3), x(3), mean.clone(), var.clone(), train, 0.1, 1e-5)
    aten.native_batch_norm_backward(grad, image, x(3), mean, var, save_mean, save_invstd, train, 1e-5, list(mask))


def weight_norm():
    v, g = x(4, 5, 6), x(1, 5, 1)
    _, norm = aten._weight_norm_interface(x(4, 5), x(4, 1), 0)
    _, norm = aten._weight_norm_interface(torch.randn(4, 6), x(1, 6), 1)
    v, g = x(4, 6), x(1, 6)
    _, norm = aten._weight_norm_interface(v, g, 1)
    aten._weight_norm_interface_backward(x(4, 6), v, g, norm, 1)


def functional(training, count=4):
    aten._native_batch_norm_legit_functional(x(count, 3, 5), x(3), x(3), *statistics(), training, 0.3, 1e-3)


CASES = {
    "_native_batch_norm_legit_functional.default": lambda: functional(True),
    "_native_batch_norm_legit_functional.default evaluation": lambda: functional(False),
    "_native_batch_norm_legit_no_training.default": lambda: aten._native_batch_norm_legit_no_training(
        x(4, 3), x(3), None, *statistics(), 0.1, 1e-5
    ),
    "_native_batch_norm_legit.no_stats": lambda: aten._native_batch_norm_legit.no_stats(x(4, 3, 2), x(3), x(3), True, 0.1, 1e-5),
    "native_batch_norm.default far from zero": lambda: aten.native_batch_norm(x(64, 3) + 1e4, None, None, None, None, True, 0.1, 1e-5),
    "native_batch_norm.default bfloat16": lambda: aten.native_batch_norm(
        x(8, 3, 4, 4).bfloat16() + 3, x(3), x(3), *statistics(), True, 0.1, 1e-5
    ),
    "native_batch_norm_backward.default": lambda: batch_norm_backward(True),
    "native_batch_norm_backward.default evaluation": lambda: batch_norm_backward(False),
    "native_batch_norm_backward.default parts": lambda: batch_norm_backward(True, (True, False, False)),
    "_weight_norm_interface.default": weight_norm,
    "_weight_norm_interface_backward.default": weight_norm,
    "native_layer_norm.default bfloat16": lambda: aten.native_layer_norm(x(4, 64).bfloat16() + 3, [64], x(64), x(64), 1e-5),
    "renorm.default": lambda: [torch.renorm(x(3, 4), p, d, 1.5) for p, d in ((1, 0), (2.5, 1), (float("inf"), -1))],
}
RMS_NORM = ("_fused_rms_norm.default", "_fused_rms_norm_backward.default")  # no kernels on the CPU
FAMILY = Family("normalization", ops=OPS, cases=CASES, unreached=RMS_NORM)

test_samples, test_case, test_keys = FAMILY.tests()


@pytest.mark.parametrize("eps", [None, 1e-2])
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm(affine, eps):
    image, weight, grad = x(4, 5, 6).requires_grad_(), x(5, 6).requires_grad_() if affine else None, x(4, 5, 6)
    result, rstd = torch.ops.aten._fused_rms_norm(image, [5, 6], weight, eps)
    FAMILY.check_lowered(RMS_NORM[0], (result.detach(), rstd.detach()), image, [5, 6], weight, eps)
    gradients = torch.autograd.grad(result, (image, weight) if affine else (image,), grad)
    if affine:
        FAMILY.check_lowered(RMS_NORM[1], gradients, grad, image, [5, 6], rstd, weight, [True, True])


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float16, torch.float32, None])
@pytest.mark.parametrize("statistics_kept", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_in_half_precision_trains(dtype, statistics_kept, parameters):
    """What is saved for the backward has the dtype of the parameters, or of the operand: the backward asks for it."""
    if parameters not in (dtype, torch.float32, None):
        pytest.skip("the CPU takes no such mixture")
    found = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        module = torch.nn.BatchNorm1d(4, affine=parameters is not None, track_running_stats=statistics_kept)
        module = module.to(device, parameters or dtype)
        image = torch.randn(8, 4, dtype=dtype).to(device).requires_grad_()
        result = module(image)
        result.float().pow(3).mean().backward()
        found.append([tensor.cpu() for tensor in (result.detach(), image.grad, *(p.grad for p in module.parameters()))])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
