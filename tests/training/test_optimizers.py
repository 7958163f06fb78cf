"""Every optimizer and scheduler of PyTorch: after some steps the weights are CPU eager's, to 1e-9 in float64."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.testing._internal.common_optimizers import optim_db

import surestep
from both import compare

SPARSE = {"SparseAdam"}  # sparse gradients: no dense backend has them


def train(device, make, steps=4, schedule=None, closure=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model.to(device)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    x, y = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4).to(device), torch.ones(5, 2, dtype=torch.float64).to(device)

    def loss():
        optimizer.zero_grad()
        value = nn.functional.mse_loss(model(x), y)
        value.backward()
        return value

    for _ in range(steps):
        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
        if scheduler is not None:
            scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return [p.detach() for p in model.parameters()]


CASES = [
    (info.optim_cls, item.kwargs, item.desc)
    for info in optim_db
    if info.optim_cls.__name__ not in SPARSE
    for item in info.optim_inputs_func(device="cpu")
    if item.params is None or not isinstance(item.params, torch.Tensor)
]
MATRICES_ONLY = {"Muon"}


@pytest.mark.parametrize(("kind", "options", "what"), CASES, ids=[f"{kind.__name__}-{what}" for kind, _, what in CASES])
@pytest.mark.parametrize("implementation", ["default", "foreach"])
@pytest.mark.filterwarnings("ignore")
def test_optimizer(kind, options, what, implementation):
    if kind.__name__ in MATRICES_ONLY:
        pytest.skip("takes matrices only; test_muon")
    info = next(info for info in optim_db if info.optim_cls is kind)
    if implementation == "foreach":
        if (
            what not in ("default", "maximize, weight_decay", "amsgrad", "momentum")
            or "foreach" not in info.supported_impls
            or options.get("differentiable")
            or options.get("capturable")
        ):
            pytest.skip("PyTorch has no foreach form of it, or it is as another one")
        options = {**options, "foreach": True}

    def make(parameters):
        values = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        return kind(parameters, **values)

    closure = kind is torch.optim.LBFGS
    try:
        truth = train("cpu", make, closure=closure)
    except (RuntimeError, AssertionError) as error:
        with pytest.raises(type(error)):
            train("xla", make, closure=closure)
        return
    compare(truth, train("xla", make, closure=closure), rtol=1e-9, atol=1e-9)


def test_muon():
    def run(device):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 3, dtype=torch.float64).to(device))
        optimizer = torch.optim.Muon([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        return weight.detach()

    compare(run("cpu"), run("xla"), rtol=1e-2, atol=1e-2)  # its Newton-Schulz iteration runs in bfloat16


def test_fused_is_refused_as_pytorch_refuses_it():
    weight = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.Adam([weight], fused=True)
    weight.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"fused=True.*requires all the params"):
        optimizer.step()
    assert weight.tolist() == [1, 1]


def test_capturable_keeps_its_state_on_the_device():
    make = lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1, dtype=torch.float64), capturable=True)  # noqa: E731
    truth = train("cpu", lambda p: torch.optim.AdamW(p, lr=0.1))

    def on_device(parameters):
        parameters = list(parameters)
        return torch.optim.AdamW(parameters, lr=0.1, capturable=False) if parameters[0].device.type == "cpu" else make(parameters)

    # capturable's bias corrections are powers of a float32 step count: PyTorch's own rounding, on any device
    compare(truth, train("xla", on_device), rtol=1e-4, atol=1e-5)
    weight = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1), capturable=True)
    with surestep.step():
        weight.square().sum().backward()
        optimizer.step()
    assert optimizer.state[weight]["step"].device.type == "xla" and weight.tolist() == pytest.approx([0.899] * 3, abs=1e-5)


SCHEDULES = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=8),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.8),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_scheduler(name, metrics):
    make = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)  # noqa: E731
    compare(train("cpu", make, 7, SCHEDULES[name]), train("xla", make, 7, SCHEDULES[name]), rtol=1e-9, atol=1e-9)
    assert metrics().compile.count <= 4
