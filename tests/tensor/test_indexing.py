"""Indexing in all its forms, with indices on the device or on the CPU, reading and writing."""

import pytest
import torch

from both import compare, same, to_xla

READS = {
    "integers": lambda t, i, m: t[i],
    "integers in the middle": lambda t, i, m: t[:, i],
    "two indices": lambda t, i, m: t[i, i],
    "apart": lambda t, i, m: t[i, :, i],
    "mask": lambda t, i, m: t[m],
    "mask of a dimension": lambda t, i, m: t[m[:, 0, 0]],
    "list": lambda t, i, m: t[[0, 1]],
    "none and ellipsis": lambda t, i, m: t[None, ..., 1],
    "true": lambda t, i, m: t[True],
    "negative": lambda t, i, m: t[-1, i - 3],
    "chained": lambda t, i, m: t[i][:, i],
    "matrix of indices": lambda t, i, m: t[i[:, None], i],
    "take": lambda t, i, m: torch.take(t, i),
    "gather": lambda t, i, m: t.gather(0, i.view(2, 1, 1)),
    "index_select": lambda t, i, m: t.index_select(1, i),
    "masked_select": lambda t, i, m: t.masked_select(m),
    "nonzero": lambda t, i, m: m.nonzero(),
    "where": lambda t, i, m: torch.where(m, t, -t),
}
WRITES = {
    "integers": lambda t, i, m: t.__setitem__(i, 1.0),
    "mask": lambda t, i, m: t.__setitem__(m, 0.0),
    "mask with values": lambda t, i, m: t.__setitem__(m, t[m] * 2),
    "mask of a dimension": lambda t, i, m: t.__setitem__(m[:, 0, 0], 5.0),
    "slice and integers": lambda t, i, m: t.__setitem__((slice(None), i), torch.zeros(2, 6, device=t.device)),
    "element": lambda t, i, m: t.__setitem__((0, 1), 5),
    "index_add": lambda t, i, m: t.index_add_(0, i, t[:2].clone(), alpha=2),
    "index_fill": lambda t, i, m: t.index_fill_(1, i, 9.0),
    "masked_fill": lambda t, i, m: t.masked_fill_(m, 3),
    "scatter": lambda t, i, m: t.scatter_(0, i.view(2, 1, 1), 5.0),
    "scatter_add": lambda t, i, m: t.scatter_add_(0, i.view(2, 1, 1), torch.ones(2, 1, 1, device=t.device)),
    "accumulate": lambda t, i, m: t.index_put_((torch.zeros_like(i),), torch.ones((), device=t.device), accumulate=True),
    "a view's mask": lambda t, i, m: t[0].__setitem__(m[0], 1.0),
}


def inputs():
    torch.manual_seed(0)
    tensor = torch.randn(4, 5, 6)
    return tensor, torch.tensor([0, 2]), tensor > 0


@pytest.mark.parametrize("name", READS)
def test_reading(name):
    same(READS[name], *inputs())


@pytest.mark.parametrize("name", ["integers", "two indices", "mask", "mask of a dimension"])
def test_indices_may_be_on_the_cpu(name):
    tensor, index, mask = inputs()
    compare(READS[name](tensor, index, mask), READS[name](tensor.to("xla"), index, mask))


@pytest.mark.parametrize("name", WRITES)
def test_writing(name):
    same(WRITES[name], *inputs())


@pytest.mark.parametrize("name", ["integers", "two indices", "mask", "gather", "index_select"])
def test_gradients_of_reading(name):
    def gradient(tensor, index, mask):
        tensor.requires_grad_()
        READS[name](tensor, index, mask).square().sum().backward()
        return tensor.grad

    same(gradient, *inputs())


def test_writing_through_a_mask_reads_nothing(metrics):
    tensor, _, mask = to_xla(inputs())
    tensor[mask] = 0.0
    tensor.masked_fill_(mask, 1.0)
    assert metrics().fallbacks.total() == 0 and metrics().boundaries.total() == 0


def test_an_index_out_of_range_that_the_host_knows_is_an_error():
    tensor = torch.ones(3, device="xla")
    for index in (5, -4):
        with pytest.raises(IndexError, match="out of bounds"):
            tensor[index]
    with pytest.raises(IndexError, match="out of bounds"):
        torch.ops.aten.index.Tensor(tensor, [torch.tensor([7])])
    with pytest.raises(IndexError, match="shape of the mask"):
        tensor[torch.ones(4, dtype=torch.bool, device="xla")]


def test_iteration_and_python_values():
    tensor = torch.arange(3, device="xla")
    assert [int(x) for x in tensor] == tensor.tolist() == [0, 1, 2]
    assert len(tensor) == 3 and 2 in tensor and bool((tensor == tensor).all()) and f"{tensor[1]:d}" == "1"
    assert list(range(5))[tensor[2]] == 2  # __index__
