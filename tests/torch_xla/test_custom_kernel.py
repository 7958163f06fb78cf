"""Attention and grouped products by torch_xla's names, against their formulas on the CPU, forward and backward."""

import pytest
import torch

from surestep.torch_xla.experimental.custom_kernel import (
    GMM,
    FlashAttention,
    convert_torch_dtype_to_jax,
    flash_attention,
    gmm,
    gmm_backward,
    make_kernel_from_pallas,
    tgmm,
    to_jax_shape_dtype_struct,
)


def reference(q, k, v, causal=False, q_segment_ids=None, kv_segment_ids=None, sm_scale=1.0, *, ab=None):
    products = q @ k.transpose(-1, -2) * sm_scale
    if ab is not None:
        products = products + ab
    hidden = torch.ones(q.shape[2], k.shape[2]).triu(1) * causal
    if q_segment_ids is not None:
        hidden = hidden.maximum((q_segment_ids[:, :, None] != kv_segment_ids[:, None, :])[:, None].float())
    products = products - 1e30 * hidden
    return products.softmax(-1) @ v


def tensors(queries, keys):
    torch.manual_seed(0)
    return torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 4)


def agree(function, expected, given, rest=(), **named):
    """Both on the CPU, and ours on the device; results and gradients."""
    results = []
    for call, device in ((expected, "cpu"), (function, "xla")):
        leaves = [each.detach().clone().to(device).requires_grad_() for each in given]
        moved = {name: each.to(device) if isinstance(each, torch.Tensor) else each for name, each in named.items()}
        result = call(*leaves, *(each.to(device) if isinstance(each, torch.Tensor) else each for each in rest), **moved)
        result.mul(torch.arange(result.numel(), device=device).reshape(result.shape).sin()).sum().backward()
        results.append([result.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


SEGMENTS = torch.tensor([[0, 0, 1, 1, 2], [3, 3, 3, 5, 5]])
KEYS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [3, 5, 5, 5, 5, 5, 5]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("sm_scale", [1.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
def test_flash_attention(causal, segments, sm_scale, biased):
    named = {"causal": causal, "sm_scale": sm_scale}
    if segments:
        named |= {"q_segment_ids": SEGMENTS, "kv_segment_ids": KEYS}
    if biased:
        named["ab"] = torch.linspace(-1, 1, 2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    agree(flash_attention, reference, tensors(5, 7), **named)


def test_a_bias_has_a_gradient():
    given = (*tensors(3, 3), torch.linspace(-1, 1, 2 * 3 * 3 * 3).reshape(2, 3, 3, 3))
    agree(lambda q, k, v, ab: flash_attention(q, k, v, True, ab=ab), lambda q, k, v, ab: reference(q, k, v, True, ab=ab), given)


def test_a_query_without_keys_has_the_mean():
    q, k, v = (each.to("xla") for each in tensors(2, 2))
    alone = torch.full((2, 2), 7, device="xla")
    found = flash_attention(q, k, v, q_segment_ids=alone, kv_segment_ids=alone + 1)
    torch.testing.assert_close(found.cpu(), v.cpu().mean(2, keepdim=True).expand(2, 3, 2, 4))


def test_the_autograd_function():
    agree(FlashAttention.apply, reference, tensors(5, 7), (True, SEGMENTS, KEYS, 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.ones(2, 3, 7, 5)}, r"q of shape .* and was given \(2, 3, 5, 4\), \(2, 3, 7, 5\), \(2, 3, 7, 4\)"),
        ({"v": torch.ones(2, 3, 6, 4)}, "k and v of shape"),
        ({"q_segment_ids": SEGMENTS}, "both q_segment_ids and kv_segment_ids, or neither"),
        ({"q_segment_ids": KEYS, "kv_segment_ids": KEYS}, r"must have the shapes \(2, 5\) and \(2, 7\), and have \(2, 7\), \(2, 7\)"),
        ({"ab": torch.ones(1, 3, 5, 7)}, r"ab must have the shape \(2, 3, 5, 7\), and has \(1, 3, 5, 7\)"),
    ],
)
def test_what_does_not_fit_is_said(change, message):
    given = dict(zip("qkv", tensors(5, 7), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        flash_attention(**{name: each.to("xla") for name, each in given.items()})


SIZES = [[2, 0, 4], [1, 2, 3], [6, 0, 0], [1, 1, 1]]


def grouped(lhs, rhs, sizes):
    """One group after the other; rows that are in none give zeros."""
    parts = [part @ weight for part, weight in zip(lhs[: sum(sizes)].split(sizes), rhs, strict=True)]
    return torch.cat([*parts, lhs.new_zeros(len(lhs) - sum(sizes), rhs.shape[2])])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("call", [gmm, GMM.apply])
def test_gmm(sizes, call):
    torch.manual_seed(0)
    given = torch.randn(6, 4), torch.randn(3, 4, 5)
    agree(lambda lhs, rhs: call(lhs, rhs, torch.tensor(sizes, dtype=torch.int32, device="xla")), lambda *two: grouped(*two, sizes), given)


@pytest.mark.parametrize("sizes", SIZES)
def test_tgmm_and_the_gradients(sizes):
    torch.manual_seed(0)
    lhs, rhs, grad = torch.randn(6, 4), torch.randn(3, 4, 5), torch.randn(6, 5)
    on_device = torch.tensor(sizes, dtype=torch.int32, device="xla")
    rows = [range(sum(sizes[:place]), sum(sizes[: place + 1])) for place in range(3)]
    expected = torch.stack([lhs.t()[:, list(group)] @ grad[list(group)] for group in rows])
    torch.testing.assert_close(tgmm(lhs.t().to("xla"), grad.to("xla"), on_device).cpu(), expected)
    leaves = lhs.requires_grad_(), rhs.requires_grad_()
    wanted = torch.autograd.grad(grouped(*leaves, sizes), leaves, grad)
    found = gmm_backward(grad.to("xla"), lhs.detach().to("xla"), rhs.detach().to("xla"), on_device)
    torch.testing.assert_close([each.cpu() for each in found], list(wanted))


def test_a_pallas_kernel():
    from jax.experimental import pallas

    def add(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    def added(x, y):
        import jax

        return pallas.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x, y)

    x = torch.arange(8.0, device="xla")
    kernel = make_kernel_from_pallas(added, lambda x, y: [(x.shape, x.dtype)])
    assert kernel(x, x * 2).tolist() == [3.0 * each for each in range(8)]
    with pytest.raises(
        ValueError, match=r"gives \[\(\(8,\), torch.float32\)\], and output_shape_dtype_fn says \[\(\(4,\), torch.float32\)\]"
    ):
        make_kernel_from_pallas(added, lambda x, y: [((4,), x.dtype)])(x, x)


def test_a_kernel_with_static_arguments_and_two_results():
    def split(x, axis, by):
        return x.sum(axis), x * by

    kernel = make_kernel_from_pallas(split, lambda x, axis: [((2,), x.dtype), (x.shape, x.dtype)])
    sums, scaled = kernel(torch.ones(3, 2, device="xla"), 0, by=4, static_argnums=(1,), static_argnames=("by",))
    assert sums.tolist() == [3.0, 3.0] and scaled.sum().item() == 24


def test_dtypes():
    import jax.numpy as jnp

    assert (
        convert_torch_dtype_to_jax(torch.bfloat16) is jnp.bfloat16.dtype.type
        and convert_torch_dtype_to_jax(torch.int32) is jnp.int32.dtype.type
    )
    struct = to_jax_shape_dtype_struct(torch.ones(2, 3, dtype=torch.float16))
    assert struct.shape == (2, 3) and struct.dtype == jnp.float16
