"""Dynamo traces over the tensor class: what torch.compile's backends for this device will stand on."""

import pytest
import torch
from torch import nn

import surestep
from surestep.tensor.calling import call_jax
from surestep.torch_xla import runtime as xr
from surestep.torch_xla.core import xla_model as xm


def test_dynamo_traces_one_graph_and_calls_it_with_real_tensors(metrics):
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
        assert all(type(tensor).__name__ in ("XlaTensor", "Parameter") and tensor.device.type == "xla" for tensor in inputs)
        return graph.forward

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("xla"), torch.ones(2, 4).to("xla")
    expected = model(x)
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        compiled(x).sum().backward()
    torch.testing.assert_close(compiled(x).detach().cpu(), expected.detach().cpu())
    assert len(graphs) == 1 and len(graphs[0]) == 2 and metrics().fallbacks.total() == 0
    assert model[0].weight.grad.shape == (4, 4)


def test_two_tensors_that_lie_alike_are_not_taken_for_one():
    compiled = torch.compile(lambda a, b: a.sin() + b, backend="eager", fullgraph=True)
    a, b = torch.ones(2, device="xla"), torch.zeros(2, device="xla")
    assert compiled(a, b).tolist() == compiled(a, b).tolist() == [a[0].sin().item()] * 2
    a.resize_(1)
    assert compiled(a, b).shape == (2,)


def made_inside(x):
    made = torch.zeros(5, device=x.device)
    made.add_(x)
    made[1] = x[2]
    pair = torch.tensor([1.0, 2.0], device=x.device) + x[:2]
    return torch.cat([made, torch.ones(2).to(x.device)]) * torch.arange(7, device=x.device), pair


def test_tensors_that_are_made_inside():
    x = torch.randn(5)
    found = torch.compile(made_inside, backend="eager", fullgraph=True)(x.to("xla"))
    torch.testing.assert_close([each.cpu() for each in found], list(made_inside(x)))


def test_random_numbers_are_others_at_each_call():
    compiled = torch.compile(lambda x: x + torch.randn(5, device=x.device), backend="eager", fullgraph=True)
    x = torch.zeros(5, device="xla")
    assert not torch.equal(compiled(x), compiled(x))


def test_where_this_process_stands():
    def function(x):
        return x * xr.world_size() + xr.global_ordinal() + torch.ones(2, device=xm.xla_device())

    assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, device="xla")).tolist() == [2, 2]


def training_step(x, optimizer):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(x.cos() / 2, torch.tensor([1, 2, 3]).to(x.device))
    loss.backward()
    optimizer.step()
    return loss.detach()


def stepping(x, optimizer):
    with surestep.step():
        return training_step(x, optimizer)


def syncing(x, optimizer):
    loss = training_step(x, optimizer)
    surestep.sync()
    return loss + len(str(loss.item() > 0))


def reading(x, optimizer):
    loss = training_step(x, optimizer)
    return loss if loss > 100 else torch._foobar(loss * 2) + loss


@pytest.mark.filterwarnings("ignore")  # Dynamo's, of its own reading of gradients, and surestep's, of what runs on the host
@pytest.mark.parametrize("step", [training_step, stepping, syncing, reading])
def test_dynamo_leaves_the_devices_own_python_alone(step):
    """After a graph break it compiles what is called, and would what records and runs an operation."""
    torch._dynamo.reset()
    values, ends = torch.randn(3, 5), []
    for device, called in (("cpu", step), ("xla", torch.compile(step, backend="eager"))):
        x = nn.Parameter(values.clone().to(device))
        optimizer = torch.optim.AdamW([x], lr=0.1)
        ends.append([*(called(x, optimizer).cpu() for _ in range(3)), x.detach().cpu()])
    torch.testing.assert_close(ends[1], ends[0])


def test_a_jax_function_inside():
    def double(x):
        return x * 2

    compiled = torch.compile(lambda x: call_jax(double, (x,)) + 1, backend="eager")
    assert compiled(torch.ones(2, device="xla")).tolist() == [3, 3]
