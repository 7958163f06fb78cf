"""Saving, loading, copying."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def test_save_and_load_on_the_device():
    loaded = torch.load(saved({"t": torch.arange(6.0, device="xla").reshape(2, 3)}), weights_only=True)["t"]
    assert loaded.device.type == "xla" and loaded.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_to_and_from_the_cpu(dtype):
    tensor = torch.tensor([1, 0, 1]).to(dtype)
    assert torch.equal(torch.load(saved(tensor.to("xla")), map_location="cpu", weights_only=True), tensor)
    assert torch.equal(torch.load(saved(tensor), map_location="xla", weights_only=True).cpu(), tensor)


def test_what_shares_a_storage_shares_it_when_loaded():
    tensor = torch.arange(4.0, device="xla")
    for first, second in (
        torch.load(saved((tensor, tensor[1:])), weights_only=True),
        pickle.loads(pickle.dumps((tensor, tensor[1:]))),
        copy.deepcopy((tensor, tensor[1:])),
    ):
        first[1] = 9
        assert second.tolist() == [9, 2, 3] and tensor.tolist() == [0, 1, 2, 3]


def test_a_checkpoint_of_tied_weights_loads_in_a_pytorch_without_surestep(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("xla")
    model[1].weight = model[0].weight
    torch.save(model.state_dict(), tmp_path / "model.pt")
    script = (
        "import sys, torch\n"
        "state = torch.load(sys.argv[1], map_location='cpu', weights_only=True)\n"
        "assert state['0.weight'].data_ptr() == state['1.weight'].data_ptr()\n"
        "assert 'surestep' not in sys.modules\n"
        "print(state['0.bias'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model.pt")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(model[0].bias.tolist())


def test_whole_modules_and_parameters():
    model = nn.Linear(2, 2).to("xla")
    loaded = torch.load(saved(model), weights_only=False)
    assert isinstance(loaded.weight, nn.Parameter) and loaded.weight.device.type == "xla" and loaded.weight.requires_grad
    parameter = pickle.loads(pickle.dumps(model.weight))
    assert isinstance(parameter, nn.Parameter) and torch.equal(parameter.cpu(), model.weight.cpu())


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
    "save": lambda tensor: torch.load(saved(tensor), weights_only=False),
    "in a module": lambda tensor: copy.deepcopy(nn.ParameterList([tensor]))[0],
}
KINDS = {
    "a tensor": lambda data: data,
    "a leaf": lambda data: data.requires_grad_(),
    "a parameter": nn.Parameter,
    "a frozen parameter": lambda data: nn.Parameter(data, requires_grad=False),
    "a buffer": nn.Buffer,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_what_the_cpus_has(how, kind):
    """The gradient, attributes, the class: a parameter's deep copy has neither of the first two."""

    def figures(device):
        tensor = KINDS[kind](torch.arange(4.0, device=device).view(2, 2).t())
        tensor.mine = ["an attribute"]
        if tensor.is_floating_point() and kind != "a buffer":
            tensor.grad = torch.ones(2, 2, device=device)
        found = COPIES[how](tensor)
        grad = None if found.grad is None else found.grad.tolist()
        own = getattr(found, "mine", None), getattr(found, "mine", None) is tensor.mine
        return found.tolist(), found.requires_grad, isinstance(found, nn.Parameter), grad, own, found.stride(), found is tensor

    assert figures("xla") == figures("cpu")


def test_deep_copies_are_apart():
    model = nn.Linear(2, 2).to("xla")
    twin = copy.deepcopy(model)
    assert isinstance(twin.weight, nn.Parameter) and torch.equal(twin.weight.cpu(), model.weight.cpu())
    twin.weight.data.zero_()
    assert model.weight.abs().sum().item() > 0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(model.weight * 2)
    tied = copy.deepcopy(nn.ModuleList([model, model]))
    assert tied[0].weight is tied[1].weight
    first, second = copy.deepcopy((model.weight, nn.Parameter(model.weight.detach())))  # over one memory, and apart in the copy
    first.data.zero_()
    assert second.abs().sum().item() > 0


def test_optimizer_state_goes_through_a_checkpoint():
    def run(steps, model, optimizer):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 2, device="xla")).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run(2, model, optimizer)
    buffer = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    run(3, model, optimizer)
    again = nn.Linear(2, 2).to("xla")
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    state = torch.load(buffer, weights_only=True)
    again.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    run(3, again, other)
    assert torch.equal(again.weight.cpu(), model.weight.cpu())
