"""Modules that move: identity, ties, hooks and gradients stay."""

import copy

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


@pytest.mark.parametrize(
    "move", [lambda m: m.to("xla"), lambda m: m.to("xla").cpu(), lambda m: m.to("xla").double(), lambda m: m.to("xla").to("cpu").to("xla")]
)
def test_parameters_keep_identity_ties_and_optimizers(move):
    model = Tied()
    parameter = model.head.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    move(model)
    assert model.embedding.weight is model.head.weight is parameter is optimizer.param_groups[0]["params"][0]
    before = parameter.detach().cpu().clone()
    model(torch.tensor([1, 2], device=parameter.device)).sum().backward()
    optimizer.step()
    assert not torch.equal(parameter.detach().cpu(), before)


def test_hooks_set_before_the_move_still_fire_once():
    fired = []
    model = nn.Linear(3, 3)
    model.weight.register_hook(lambda grad: fired.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: fired.append("after"))
    removed = model.weight.register_hook(lambda grad: fired.append("removed"))
    model.to("xla")
    removed.remove()
    model(torch.ones(1, 3, device="xla")).sum().backward()
    assert fired == ["hook", "after"]
    model.cpu()
    model(torch.ones(1, 3)).sum().backward()
    assert fired == ["hook", "after"] * 2


def test_hooks_do_not_follow_a_plain_copy():
    fired = []
    parameter = nn.Parameter(torch.ones(2))
    parameter.register_hook(lambda grad: fired.append(1))
    copy = parameter.detach().to("xla").requires_grad_()
    (copy * 2).sum().backward()
    assert fired == []


def test_gradients_move_along():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    model.to("xla")
    assert model.weight.grad.device.type == "xla" and model.weight.grad.tolist() == [[1, 1]]
    model.cpu()
    assert model.weight.grad.device.type == "cpu" and model.weight.grad.tolist() == [[1, 1]]


def test_buffers_and_conversions():
    model = nn.BatchNorm1d(3).to("xla").half()
    assert model.running_mean.dtype is torch.float16 and model.num_batches_tracked.device.type == "xla"
    assert next(nn.Linear(2, 2, device="xla").parameters()).device.type == "xla"
    lazy = nn.Linear(2, 2, device="meta").to_empty(device="xla")
    assert isinstance(lazy.weight, nn.Parameter) and lazy.weight.device.type == "xla"


def test_a_state_dict_from_the_cpu_loads_in_place():
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to("xla")
    parameter = target.weight
    target.load_state_dict(source.state_dict())
    assert target.weight is parameter and torch.equal(parameter.cpu(), source.weight)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.device.type == "cpu"  # as PyTorch's assign does


@pytest.mark.parametrize(
    ("hold", "what"), [(lambda p: p.view(-1), "a view of it"), (lambda p: __import__("weakref").ref(p), "a weak reference")]
)
def test_what_keeps_a_parameter_from_moving_is_said(hold, what):
    model = nn.Linear(2, 2)
    held = hold(model.weight)
    with pytest.raises(RuntimeError, match=f"{what}.*is alive.*delete it first"):
        model.to("xla")
    assert model.weight.device.type == "cpu" and held is not None
    del held
    model.to("xla")
    assert model.weight.device.type == "xla"


def test_a_graph_that_is_done_with_does_not_keep_it():
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    model.to("xla")
    model(torch.ones(1, 2, device="xla")).sum().backward()
    assert model.weight.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    "again", [lambda m: m.to("xla"), lambda m: m.float(), lambda m: m.xla() if hasattr(m, "xla") else m.to(torch.device("xla", 0))]
)
def test_a_module_that_is_there_already_is_left_alone_whatever_lives(again):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    view, loss = model[0].weight.view(-1), model(torch.ones(1, 3, device="xla")).sum()
    again(model)
    loss.backward()
    assert model[0].weight is optimizer.param_groups[0]["params"][0] and model[1].weight.grad is not None and view.shape == (9,)


def test_a_conversion_on_the_device_keeps_parameters_hooks_and_ties():
    model, fired = Tied().to("xla"), []
    parameter = model.head.weight
    parameter.register_hook(lambda grad: fired.append(grad.dtype))
    loss = model(torch.tensor([1], device="xla")).sum()
    model.double()
    assert loss is not None and model.embedding.weight is model.head.weight is parameter and parameter.dtype is torch.float64
    model(torch.tensor([1], device="xla")).sum().backward()
    assert fired == [torch.float64]


LAZY = {
    "linear": (lambda: nn.LazyLinear(2), (4, 3)),
    "convolution": (lambda: nn.LazyConv2d(2, 3), (2, 3, 5, 5)),
    "normalization": (lambda: nn.LazyBatchNorm1d(), (4, 3)),
}
MOVES = {
    "to": lambda m: m.to("xla"),
    "to with dtype": lambda m: m.to("xla", torch.float64),
    "then double": lambda m: m.to("xla").double(),
    "twice": lambda m: m.to("xla").to("xla"),
    "copied": lambda m: copy.deepcopy(m.to("xla")),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_module_is_made_where_it_was_moved_to(kind, move):
    make, shape = LAZY[kind]
    module = MOVES[move](make())
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert all(isinstance(p, nn.parameter.UninitializedParameter) and p.device.type == "xla" for p in parameters)
    x = torch.randn(shape).to("xla", parameters[0].dtype)
    module(x).square().sum().backward()
    optimizer.step()
    assert list(map(id, module.parameters())) == list(map(id, parameters))
    assert all(type(t) is type(x) and t.device.type == "xla" for t in (*parameters, *module.buffers()))
    assert all(isinstance(p, nn.Parameter) and p.grad is not None for p in parameters)


def test_a_lazy_module_takes_a_checkpoint_and_says_that_it_cannot_leave():
    module, saved = nn.LazyLinear(2).to("xla"), nn.Linear(3, 2).state_dict()
    with pytest.raises(RuntimeError, match="can't be moved from xla:0 to cpu before its first call"):
        module.cpu()
    module.load_state_dict(saved)
    assert torch.equal(module.weight.cpu(), saved["weight"]) and module.weight.device.type == "xla"
