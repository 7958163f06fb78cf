"""Trains a small convolutional network on handwritten digits, on one device: the loop of the guide's Pattern 1.

    surestep run examples/digits.py

Each step is one program: forward, backward and the optimizer. The learning rate changes with every step, and that compiles nothing anew.
The loss is shown without
cutting steps: a step closure reads it when the step's program has run. Ends with a checkpoint that plain PyTorch loads.
"""

import argparse

import torch
import torch_xla.core.xla_model as xm
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torch_xla


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    train_images, test_images, train_labels, test_labels = parts
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to("xla")).argmax(dim=1).cpu()
            correct += (predicted == labels).sum().item()
            total += len(labels)
    model.train()
    return correct / total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--checkpoint", default="digits.pt")
    options = parser.parse_args()

    torch.manual_seed(0)
    train_set, test_set = load_data()
    train_loader = DataLoader(train_set, options.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, len(test_set))

    model = make_model().to("xla")
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = options.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)

    progress = tqdm(total=steps, unit="step", disable=None)

    def show(loss):
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        progress.update()

    for _ in range(options.epochs):
        for images, labels in train_loader:
            with torch_xla.step():
                images, labels = images.to("xla"), labels.to("xla")
                optimizer.zero_grad()
                loss = loss_fn(model(images), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
                xm.add_step_closure(show, args=(loss.detach(),))
    torch_xla.sync()
    progress.close()

    accuracy = evaluate(model, test_loader)
    print(f"held-out accuracy: {accuracy:.2%} of {len(test_set)} digits")
    xm.save(model.state_dict(), options.checkpoint)
    print(f"saved {options.checkpoint}")


if __name__ == "__main__":
    main()
