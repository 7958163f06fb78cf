"""Whole models, trained a few steps: weights, buffers and losses are CPU eager's, to rounding."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from both import compare


class Block(nn.Module):
    """A residual block with a strided shortcut."""

    def __init__(self, inside, outside):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, 2, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, 2, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x).add_(self.shortcut(x)))


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Block(8, 16),
        Block(16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(17, 16), nn.Parameter(torch.randn(12, 16) * 0.1)
        self.norm1, self.norm2, self.last = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 17, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, 4).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.last(x)).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(5, 6, 2, batch_first=True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def autoencoder():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.SiLU(),
        nn.GroupNorm(2, 4),
        nn.ConvTranspose2d(4, 4, 4, 2, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.LeakyReLU(0.1),
        nn.Conv2d(4, 1, 3, 2, 1),
        nn.Sigmoid(),
    )


def bert():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu", batch_first=True)
    return nn.Sequential(
        nn.Embedding(17, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(0, 1), nn.Linear(16, 17)
    )


def images(n=4, c=3, size=16):
    return torch.randn(n, c, size, size)


MODELS = {
    "resnet": (resnet, images, lambda: torch.randint(0, 4, (4,)), F.cross_entropy),
    "gpt": (GPT, lambda: torch.randint(0, 17, (3, 10)), lambda: torch.randint(0, 17, (30,)), F.cross_entropy),
    "bert": (bert, lambda: torch.randint(0, 17, (3, 10)), lambda: torch.randint(0, 17, (30,)), F.cross_entropy),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(4, 6, 5), lambda: torch.randint(0, 3, (4,)), F.cross_entropy),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(4, 6, 5), lambda: torch.randint(0, 3, (4,)), F.cross_entropy),
    "autoencoder": (autoencoder, lambda: images(4, 1, 8), lambda: torch.rand(4, 1, 8, 8), F.binary_cross_entropy),
}


def fit(model, x, y, loss_function, steps, stepped, device):
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    losses = []
    for _ in range(steps):
        if stepped:
            with surestep.step():
                losses.append(one(model, optimizer, x, y, loss_function))
        else:
            losses.append(one(model, optimizer, x, y, loss_function))
    return losses, dict(model.state_dict())


def one(model, optimizer, x, y, loss_function):
    optimizer.zero_grad()
    loss = loss_function(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_the_cpu(name, metrics):
    make, inputs, targets, loss_function = MODELS[name]
    torch.manual_seed(0)
    model, x, y = make().double(), inputs(), targets()
    x = x.double() if x.is_floating_point() else x
    y = y.double() if y.is_floating_point() else y
    truth = fit(copy.deepcopy(model), x, y, loss_function, 4, False, "cpu")
    ours = fit(model, x, y, loss_function, 4, True, "xla")
    compare(truth, ours, rtol=1e-6, atol=1e-9)
    assert metrics().run.count == 4 and metrics().compile.count <= 3
    assert metrics().fallbacks.total() == 0 and metrics().implicit.total() == 0


def test_a_gan_with_two_optimizers():
    def run(device):
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh()).double().to(device)
        critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).double().to(device)
        of_generator, of_critic = torch.optim.Adam(generator.parameters(), 1e-2), torch.optim.Adam(critic.parameters(), 1e-2)
        real, noise = torch.randn(6, 2).double().to(device), torch.randn(6, 3).double().to(device)
        for _ in range(4):
            of_critic.zero_grad()
            fake = generator(noise)
            (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            of_generator.step()
        return [p.detach() for p in (*generator.parameters(), *critic.parameters())]

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_moving_averages_of_weights():
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double().to(device)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(5, 3).double().to(device)
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
            average.update_parameters(model)
        return list(average.module.state_dict().values())

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations(kind):
    from torch.nn.utils import parametrizations

    def run(device):
        torch.manual_seed(0)
        layer = getattr(parametrizations, kind)(nn.Linear(4, 4).double())
        layer.to(device)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        x = torch.randn(3, 4).double().to(device)
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
        return [p.detach() for p in layer.parameters()]

    compare(run("cpu"), run("xla"), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("wanted", [(False, True, True), (False, False, True), (True, False, True), (True, True, False)], ids=str)
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 4)], ids=lambda m: type(m).__name__)
def test_a_layer_whose_input_or_parameters_want_no_gradient(layer, wanted):
    """It is the first of a model, or frozen: nothing runs on the host, which would be a warning."""

    def run(device):
        module = copy.deepcopy(layer).double().to(device)
        x = torch.arange(12.0, dtype=torch.float64).view(3, 4).sin().to(device).requires_grad_(wanted[0])
        for parameter, required in zip(module.parameters(), wanted[1:], strict=True):
            parameter.requires_grad_(required)
        (module(x) * torch.arange(12.0, dtype=torch.float64).view(3, 4).to(device)).sum().backward()
        return [t.grad for t in (x, *module.parameters()) if t.requires_grad]

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.LayerNorm(4), nn.GroupNorm(3, 3), nn.RMSNorm(4)], ids=lambda m: type(m).__name__)
def test_normalizing_in_few_bits(layer, dtype):
    def run(device):
        module = copy.deepcopy(layer).to(device, dtype)
        found = []
        for memory in (torch.contiguous_format, torch.channels_last):
            x = torch.arange(96.0).view(2, 3, 4, 4).sin().to(dtype).to(device).to(memory_format=memory).detach().requires_grad_()
            module.zero_grad()
            (module(x).float() * torch.arange(96.0).view(2, 3, 4, 4).to(device)).mean().backward()
            found += [x.grad.float(), *(parameter.grad.float() for parameter in module.parameters())]
        return found

    bits = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 0.01, "atol": 0.01}
    compare(run("cpu"), run("xla"), **bits)


class Symmetric(nn.Module):
    def forward(self, given):
        return given.triu() + given.triu(1).mT

    def right_inverse(self, weight):
        return weight.triu()


class Doubled(nn.Module):
    def forward(self, given):
        return given * 2


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("kinds", [[Symmetric], [Doubled], [Symmetric, Doubled]], ids=lambda kinds: "-".join(k.__name__ for k in kinds))
def test_parametrizing_a_module_that_trains(kinds, live):
    """The optimizer goes on with the original parameter, whatever graph or view of it is alive."""
    from torch.nn.utils import parametrize

    def run(device):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4).double().to(device)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
        x = torch.randn(3, 4).double().to(device)

        def step():
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss, layer.weight.detach()

        kept = [step()]
        if not live:
            kept.clear()
        for kind in kinds:
            parametrize.register_parametrization(layer, "weight", kind())
        kept.append(step())
        kept.append(step())
        assert layer.parametrizations.weight.original is optimizer.param_groups[0]["params"][0]
        if kinds == [Symmetric]:
            layer.weight = torch.eye(4).double().to(device)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=kinds != [Doubled])
        step()
        return [p.detach() for p in layer.parameters()]

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_and_accumulation(reentrant):
    from torch.utils.checkpoint import checkpoint

    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(8, 4).double().to(device).requires_grad_()
        for _ in range(2):
            for part in x.split(4):
                (checkpoint(model, part, use_reentrant=reentrant).square().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()], x.grad

    compare(run("cpu"), run("xla"), rtol=1e-9, atol=1e-9)


def test_functional_call_and_module_hooks():
    def run(device):
        torch.manual_seed(0)
        model, seen = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).to(device), []
        model[0].register_forward_hook(lambda module, args, out: seen.append(out.detach()) or out * 2)
        model[1].register_full_backward_hook(lambda module, gin, gout: seen.append(gout[0]))
        parameters = {name: p.detach() * 2 for name, p in model.named_parameters()}
        x = torch.ones(2, 3).to(device).requires_grad_()
        torch.func.functional_call(model, parameters, (x,)).sum().backward()
        return seen, x.grad

    compare(run("cpu"), run("xla"))
