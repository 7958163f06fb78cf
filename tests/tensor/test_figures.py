"""Dynamo traces over the tensor class: what torch.compile's backends for this device will stand on."""

import torch
from torch import nn


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
