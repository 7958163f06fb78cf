"""Storages that change under a tensor: set_, resize_, .data, out= of another size."""

import warnings

import pytest
import torch

from both import same


def test_set_shares_the_other_storage():
    def shared(a, b):
        a.set_(b)
        b.add_(1)
        return a + 0

    same(shared, torch.zeros(3), torch.arange(5.0))


def test_set_with_offset_and_strides():
    same(lambda a, b: a.set_(b, 1, (2, 2), (2, 1)).mul_(3), torch.zeros(1), torch.arange(6.0))


def test_set_from_a_storage_object():
    source = torch.arange(6.0, device="xla")
    target = torch.empty(0, device="xla").set_(source.untyped_storage())
    source.add_(1)
    assert target.tolist() == [1, 2, 3, 4, 5, 6]


def test_set_to_nothing():
    tensor = torch.ones(3, device="xla")
    tensor.set_()
    assert tensor.shape == (0,)


def test_resize_keeps_what_was_there():
    tensor = torch.arange(4.0, device="xla")
    view = tensor[1:]
    tensor.resize_(2, 4)
    assert tensor.shape == (2, 4) and tensor[0].tolist() == [0, 1, 2, 3]
    tensor[0, 1] = 9
    assert view.tolist() == [9, 2, 3]
    assert tensor.resize_(2).tolist() == [0, 9]


def test_data_takes_the_other_tensors_storage():
    def assign(a, b):
        a.data = b
        b.mul_(2)
        return a + 0

    same(assign, torch.zeros(2, requires_grad=True), torch.arange(3.0))


def test_data_of_a_parameter_keeps_the_parameter():
    parameter = torch.nn.Parameter(torch.ones(3, device="xla"))
    parameter.data = torch.arange(5.0, device="xla")
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad and parameter.shape == (5,)
    parameter.data.zero_()
    assert parameter.detach().sum().item() == 0


def test_data_from_the_cpu_says_what_to_write():
    tensor = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match=r"tensor\.data = value\.to"):
        tensor.data = torch.ones(2)
    assert tensor.tolist() == [1, 1]


def test_out_of_another_size_is_resized_as_in_pytorch():
    same(lambda a: torch.add(a, 1, out=a.new_empty(0)), torch.arange(3.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = torch.ones(2, device="xla")
        torch.add(torch.ones(3, device="xla"), 1, out=out)
    assert out.tolist() == [2, 2, 2] and "was resized" in str(caught[0].message)


def test_out_of_another_dtype_is_cast_or_refused():
    same(lambda a: torch.add(a, 1, out=torch.empty(3, dtype=torch.float64, device=a.device)), torch.arange(3.0))
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(3, device="xla"), 1.5, out=torch.empty(3, dtype=torch.int64, device="xla"))


def test_factories_that_arrive_as_out():
    assert torch.arange(6, device="xla").tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(torch.randperm(5, device="xla").tolist()) == [0, 1, 2, 3, 4]
    assert torch.linspace(0, 1, 3, device="xla").tolist() == [0, 0.5, 1]
