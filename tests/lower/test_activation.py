"""Activation functions and softmax against CPU eager."""

from __future__ import annotations

import torch
from elementwise import Elementwise

aten = torch.ops.aten
functional = torch.nn.functional
NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 6.0, 30.0, -30.0, 100.0, -100.0])
ONES = torch.ones_like(SPECIAL)
FINITE = SPECIAL[3:]


def gradient(function):
    """Forward and backward at the special points."""

    def case():
        x = FINITE.clone().requires_grad_()
        function(x).sum().backward()
        function(SPECIAL)

    return case


FAMILY = Elementwise(
    "activation",
    ops=(
        "_softmax_backward_data",
        "log_softmax",
        "nn.functional.celu",
        "nn.functional.elu",
        "nn.functional.gelu",
        "nn.functional.glu",
        "nn.functional.hardshrink",
        "nn.functional.hardsigmoid",
        "nn.functional.hardswish",
        "nn.functional.hardtanh",
        "nn.functional.leaky_relu",
        "nn.functional.logsigmoid",
        "nn.functional.mish",
        "nn.functional.prelu",
        "nn.functional.relu",
        "nn.functional.relu6",
        "nn.functional.selu",
        "nn.functional.silu",
        "nn.functional.softplus",
        "nn.functional.softshrink",
        "nn.functional.tanhshrink",
        "nn.functional.threshold",
        "sigmoid",
        "softmax",
        "torch.ops.aten._safe_softmax.default",
    ),
    cases={
        "relu.default special": gradient(torch.relu),
        "hardtanh.default special": gradient(functional.hardtanh),
        "hardswish.default special": gradient(functional.hardswish),
        "hardsigmoid.default special": gradient(functional.hardsigmoid),
        "leaky_relu.default special": gradient(lambda x: functional.leaky_relu(x, 0.3)),
        "elu.default special": gradient(lambda x: functional.elu(x, 0.7)),
        "celu.default special": gradient(lambda x: functional.celu(x, 0.7)),
        "gelu.default special": gradient(functional.gelu),
        "gelu.default tanh": gradient(lambda x: functional.gelu(x, approximate="tanh")),
        "silu.default special": gradient(functional.silu),
        "mish.default special": gradient(functional.mish),
        "softplus.default special": gradient(lambda x: functional.softplus(x, 2.0, 10.0)),
        "softshrink.default special": gradient(functional.softshrink),
        "hardshrink.default special": gradient(functional.hardshrink),
        "log_sigmoid_forward.default special": gradient(functional.logsigmoid),
        "threshold.default special": gradient(lambda x: functional.threshold(x, 0.5, 20.0)),
        "elu_backward.default result": lambda: aten.elu_backward(ONES, 0.7, 1.1, 0.9, True, torch.tanh(SPECIAL)),
        "leaky_relu_backward.default result": lambda: aten.leaky_relu_backward(ONES, SPECIAL, 0.1, True),
        "sigmoid_backward.default complex": lambda: aten.sigmoid_backward(torch.tensor([1 + 2j]), torch.tensor([0.5 - 1j])),
        "tanh_backward.default complex": lambda: aten.tanh_backward(torch.tensor([1 + 2j]), torch.tensor([0.5 - 1j])),
        "rrelu_with_noise_backward.default": lambda: [
            aten.rrelu_with_noise_backward(ONES, SPECIAL, ONES / 4, 0.1, upper, training, False)
            for upper in (0.1, 0.3)
            for training in (True, False)
        ],
        "_softmax.default infinite": lambda: [torch.softmax(torch.tensor([[-INF, -INF], [1.0, -INF], [INF, 1.0]]), d) for d in (0, 1)],
        "_softmax.default scalar": lambda: [torch.softmax(torch.tensor(2.0), 0), torch.log_softmax(torch.tensor(2.0), -1)],
        "_softmax.default empty": lambda: [torch.softmax(torch.ones(0, 3), 0), torch.softmax(torch.ones(3, 0), 1)],
        "_log_softmax.default large": lambda: torch.log_softmax(torch.tensor([[1e4, 1e4 - 1, 0.0]]), 1),
        "_safe_softmax.default": lambda: aten._safe_softmax(torch.tensor([[-INF, -INF], [1.0, -INF]]), 1),
    },
)

test_samples, test_case, test_keys = FAMILY.tests()
