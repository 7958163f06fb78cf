"""Training steps of models as transformers and torchvision write them: they are replayed, and give what CPU eager gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from real_models import Bert, BertCfg, GPT2Config, GPT2LMHead, ResNet, accuracy
from steps import Case, beside


def tokens(device, *shape, high=11, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed)).to(device)


def gpt2(device):
    torch.manual_seed(0)
    model = GPT2LMHead(GPT2Config()).double().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def step(ids):
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return out.loss.detach(), out["logits"].detach()

    step.scaled = lambda step: lambda x: step(tokens(device, 2, 6))
    return Case(step, state=lambda: list(model.parameters()))


def gpt2_output(device):
    torch.manual_seed(0)
    model = GPT2LMHead(GPT2Config()).double().to(device).eval()

    def step(ids):
        with torch.no_grad():
            return model(input_ids=ids, labels=ids)

    def scaled(step):
        def call(x):
            out = step(tokens(device, 2, 6))
            return list(out), out.loss, out["logits"], type(out).__name__

        return call

    step.scaled = scaled
    return Case(step)


def bert(device):
    torch.manual_seed(0)
    model = Bert(BertCfg()).double().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch):
        optimizer.zero_grad()
        out = model(**batch)
        out["loss"].backward()
        optimizer.step()
        return {"loss": out.loss.detach(), "right": (out.logits.argmax(-1) == batch["labels"]).sum()}

    step.scaled = lambda step: lambda x: step({"input_ids": tokens(device, 2, 6), "labels": tokens(device, 2, high=3)})
    return Case(step, state=lambda: list(model.parameters()))


def resnet(device):
    torch.manual_seed(0)
    model = ResNet().double().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(x, y):
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), accuracy(out.detach(), y, topk=(1, 3))

    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    step.scaled = lambda step: lambda x: step(images, tokens(device, 2, high=5))
    return Case(step, state=lambda: [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("make", [gpt2, gpt2_output, bert, resnet])
def test_replayed(make):
    beside(make, True, 6)
