"""Trains on handwritten digits with a compiled step: the whole of it, forward, backward and optimizer, in one function.

    surestep run examples/compiled.py

The first calls run the function's Python and are recorded. Once it is proven that a call does the same again, the later ones run the
program without the Python. The learning rate changes all the while, and the smaller last batch is a second program.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=64, shuffle=True)

    device = torch_xla.device()
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    correct = torch.zeros((), device=device)

    @torch_xla.compile
    def step(images, labels):
        optimizer.zero_grad()
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        correct.add_((logits.argmax(1) == labels).sum())
        return loss.detach()

    for epoch in range(options.epochs):
        correct.zero_()
        for images, labels in loader:
            loss = step(images.to(device), labels.to(device))
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, right {correct.item() / len(data):.1%}")


if __name__ == "__main__":
    main()
