"""Grouped and scaled products on the device, against CPU eager."""

import pytest
import torch
import torch.nn.functional as F

from both import same

GROUPS = torch.tensor([2, 2, 8], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", [((8, 4), (3, 4, 8)), ((4, 8), (8, 16)), ((3, 8, 4), (4, 8)), ((3, 8, 16), (3, 16, 8))])
def test_groups(metrics, shapes, dtype):
    """Rows, columns, summed places, or matrices: one way and back."""
    torch.manual_seed(0)
    x, y = (torch.randn(shape, dtype=dtype) for shape in shapes)
    if dtype is torch.bfloat16:
        x, y = x.repeat((1,) * (x.ndim - 1) + (2,)), y.repeat((1,) * (y.ndim - 2) + (2, 2))
    offs = None if x.ndim == y.ndim == 3 else GROUPS * (2 if dtype is torch.bfloat16 and (y.ndim == 2) else 1)

    def grouped(x, y, *offs):
        result = F.grouped_mm(x, y, offs=offs[0] if offs else None)
        return result, torch.autograd.grad((result.float() ** 2).sum(), (x, y))

    tolerance = {"rtol": 2e-2, "atol": 1.0} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    same(grouped, x.requires_grad_(), y.requires_grad_(), *([] if offs is None else [offs]), strides=False, **tolerance)
    assert not metrics().fallbacks


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("rowwise", [False, True])
def test_eight_bit_floats(metrics, dtype, rowwise):
    torch.manual_seed(0)
    x, y = torch.randn(16, 32).to(dtype), torch.randn(16, 32).to(dtype).T
    scales = (torch.rand(16, 1), torch.rand(1, 16)) if rowwise else (torch.tensor(0.5), torch.tensor(2.0))

    def scaled(x, y, *scales):
        return torch._scaled_mm(x, y, *scales, out_dtype=torch.bfloat16)

    moved = [t.to("xla") for t in (x, y, *scales)]
    torch.testing.assert_close(scaled(*moved).cpu(), scaled(x, y, *scales), rtol=1e-2, atol=1e-2)
    assert not metrics().fallbacks
