"""PyTorch's default dtype, changed between calls that are the same otherwise: integers become what it says at that time."""

import pytest
import torch

import surestep

CALLS = {
    "an operator": lambda x: x / 2,
    "a unary function": lambda x: x.sqrt(),
    "a number": lambda x: x * 1.5,
    "a complex number": lambda x: x * (1 + 2j),
    "an operand in a list": lambda x: torch.cat([x, x]) / 3,
    "a list of operands": lambda x: torch._foreach_div([x, x], 2.0),
    "where": lambda x: torch.where(x > 0, 1.5, x),
    "out": lambda x: torch.div(x, 3, out=torch.empty(3, dtype=torch.float64, device=x.device)),
    "a factory": lambda x: torch.ones(3, device=x.device),
    "a constant": lambda x: torch.tensor([0.1], device=x.device),
}


@pytest.fixture(autouse=True)
def _default():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_the_default_of_its_time(name):
    def given(device):
        found = []
        for default in (torch.float32, torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(default)
            x = torch.tensor([1, 2, 3]).to(device)
            surestep.sync()  # each time the trace begins anew, and comes to the same place
            result = CALLS[name](x)
            found += result if isinstance(result, (list, tuple)) else [result]
        return [tensor.cpu() for tensor in found]

    for ours, theirs in zip(given("xla"), given("cpu"), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_number_that_changes_with_it():
    x = torch.tensor([1, 2, 3]).to("xla")
    for number, default in ((1.5, torch.float32), (2.5, torch.float32), (2.5, torch.float64), (3.5, torch.float64)):
        torch.set_default_dtype(default)
        surestep.sync()
        result = x * number
        assert result.dtype == default
        assert result.tolist() == [number, 2 * number, 3 * number]
