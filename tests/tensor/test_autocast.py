"""Mixed precision: autocast's rules are CUDA's, and GradScaler works as on the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from surestep.tensor.autocast import FLOAT32, LOWER, WIDEST

LOW = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x,
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "lstm_cell": lambda x: nn.LSTMCell(4, 4, device="xla")(x)[0],
}
HIGH = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "exp": torch.exp,
    "pow": lambda x: x**2,
    "sum": torch.sum,
    "cumsum": lambda x: x.cumsum(0),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device="xla")),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "norm": lambda x: x.norm(),
    "softplus": F.softplus,
}
AS_GIVEN = {"add": lambda x: x + x, "relu": torch.relu, "max_pool": lambda x: F.max_pool2d(x[None, None], 2), "mean": torch.mean}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_rules(dtype):
    x = torch.rand(4, 4, device="xla")
    with torch.autocast("xla", dtype=dtype):
        assert {name: f(x).dtype for name, f in LOW.items()} == dict.fromkeys(LOW, dtype)
        assert {name: f(x.to(dtype)).dtype for name, f in HIGH.items()} == dict.fromkeys(HIGH, torch.float32)
        assert {name: f(x.to(dtype)).dtype for name, f in AS_GIVEN.items()} == dict.fromkeys(AS_GIVEN, dtype)
        assert torch.cat([x, x.to(dtype)]).dtype is torch.float32 and torch.stack([x.to(dtype)]).dtype is dtype
        assert (x.double() @ x.double()).dtype is torch.float64
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is torch.float32
            with torch.autocast("xla", dtype=dtype):
                assert (x @ x).dtype is dtype
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
    assert (x @ x).dtype is torch.float32


def test_every_name_in_the_rules_is_an_operation():
    missing = {"cross_entropy_loss", "conv_tbc", "nuclear_norm"}  # not in every release
    names = {name.partition(".")[0] for name in (*LOWER, *FLOAT32, *WIDEST)}
    python_only = {name for name in names if not hasattr(torch.ops.aten, name)}
    assert python_only <= missing | {
        "cosine_embedding_loss",
        "l1_loss",
        "kl_div",
        "tensordot",
        "pdist",
        "multi_margin_loss",
        "poisson_nll_loss",
    }


def test_training_under_autocast_keeps_float32_weights_and_learns(metrics):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(16, 4).to("xla")
    y = x.sum(1, keepdim=True).detach()
    losses = []
    for _ in range(40):
        with surestep.step():
            optimizer.zero_grad()
            with torch.autocast("xla", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    assert all(p.dtype is torch.float32 and p.grad.dtype is torch.float32 for p in model.parameters())
    assert losses[-1].item() < losses[0].item() / 20 and metrics().fallbacks.total() == 0


def test_custom_functions_under_autocast():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="xla")
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(2, device="xla", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("xla", dtype=torch.bfloat16):
        y = Double.apply(x)
    y.sum().backward()
    assert y.dtype is torch.float32 and x.grad.tolist() == [2, 2]


def test_grad_scaler_skips_infinite_steps_and_adapts_its_scale():
    def run(device):
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        weight = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        seen = []
        for factor in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([weight], 10.0)
            scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), weight.detach().tolist()))
        return seen

    assert run("xla") == run("cpu")
