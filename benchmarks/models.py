"""The workloads as ordinary PyTorch: a model, a batch, a loss and an optimizer each."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Workload(NamedTuple):
    loss: str  # "mse" or "cross_entropy"
    optimizer: str  # "sgd", "momentum" or "adamw"
    lr: float
    steps: int  # in one timed round


WORKLOADS = {
    "mlp-tiny-sgd": Workload("mse", "sgd", 0.05, 300),
    "mlp-tiny-adamw": Workload("mse", "adamw", 1e-3, 300),
    "many-small": Workload("mse", "adamw", 1e-3, 50),
    "mlp-mnist": Workload("cross_entropy", "momentum", 0.01, 50),
    "cnn": Workload("cross_entropy", "momentum", 0.01, 5),
    "gpt-small": Workload("cross_entropy", "adamw", 3e-4, 5),
}


def mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """ResNet-18's shape at a quarter of its width: 0.7 million parameters."""

    def __init__(self, width: int = 16, classes: int = 10):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage in range(4):
            outputs = width << stage
            blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn(self.stem(x))))
        return self.fc(x.mean((2, 3)))


class Layer(nn.Module):
    """A transformer layer, normalized first."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPT(nn.Module):
    """Four layers, 3.7 million parameters."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, length: int = 128, vocabulary: int = 1024):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        return self.head(self.ln(self.layers(x))).flatten(0, 1)


def build(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The model with its first weights, and the one batch that every step uses; the same in each process."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if name.startswith("mlp-tiny"):
        return mlp(32, 32, 1), torch.randn(16, 32, generator=generator), torch.randn(16, 1, generator=generator)
    if name == "many-small":
        return mlp(*[64] * 51), torch.randn(32, 64, generator=generator), torch.randn(32, 64, generator=generator)
    if name == "mlp-mnist":
        return mlp(784, 512, 512, 10), torch.rand(128, 784, generator=generator), torch.randint(10, (128,), generator=generator)
    if name == "cnn":
        return ResNet(), torch.randn(64, 3, 32, 32, generator=generator), torch.randint(10, (64,), generator=generator)
    ids = torch.randint(1024, (8, 129), generator=generator)
    return GPT(), ids[:, :-1].contiguous(), ids[:, 1:].flatten()


def optimizer(workload: Workload, parameters) -> torch.optim.Optimizer:
    """The workload's optimizer."""
    if workload.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=workload.lr)
    return torch.optim.SGD(parameters, lr=workload.lr, momentum=0.9 if workload.optimizer == "momentum" else 0)
