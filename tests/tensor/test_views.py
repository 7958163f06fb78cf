"""Views: any chain reads what PyTorch reads, and what is written through one is in the storage."""

import pytest
import torch

import surestep
from both import same

CHAINS = {
    "row": lambda t: t[0],
    "column": lambda t: t[:, 1],
    "every second": lambda t: t[..., ::2],
    "transposed part": lambda t: t.transpose(0, 2)[1:],
    "block of a reshape": lambda t: t.reshape(6, 4)[2:5, 1:3],
    "diagonal": lambda t: t.diagonal(0, 1, 2),
    "permuted": lambda t: t.permute(2, 0, 1)[1:, :, ::2],
    "as_strided": lambda t: t.as_strided((2, 2), (1, 3), 5),
    "as_strided, strides that don't nest": lambda t: t.as_strided((2, 3), (5, 3), 1),
    "nothing": lambda t: t[:, :0],
    "moved": lambda t: t.movedim(0, 2)[1:3, 1:],
    "last element": lambda t: t[-1, -1, -1],
    "unfold without overlap": lambda t: t.unfold(2, 2, 2),
    "narrow of chunk": lambda t: t.chunk(3, 1)[1].narrow(2, 1, 2),
    "split of flat": lambda t: t.view(-1).split(7)[2],
    "unsqueezed": lambda t: t[:, None, 1:, None],
    "view as bytes of another type": lambda t: t.view(torch.int32)[1, :, 1:3],
    "select then view": lambda t: t[1].view(4, 3)[1:],
    "real of complex": lambda t: torch.view_as_complex(t.view(2, 3, 2, 2)).real[1],
    "imag of complex": lambda t: torch.view_as_complex(t.view(2, 3, 2, 2)).imag[:, 1:],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_view_reads_its_part_of_the_storage(name):
    same(lambda t: CHAINS[name](t) * 1, torch.arange(24.0).reshape(2, 3, 4), strides=False)
    same(CHAINS[name], torch.arange(24.0).reshape(2, 3, 4))


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_written_through_a_view_is_in_the_storage(name):
    same(lambda t: CHAINS[name](t).fill_(7), torch.arange(24.0).reshape(2, 3, 4))
    same(lambda t: CHAINS[name](t).mul_(2), torch.arange(24.0).reshape(2, 3, 4))


@pytest.mark.parametrize("name", CHAINS)
def test_a_view_sees_what_is_written_to_its_base_later(name):
    def later(t):
        view = CHAINS[name](t)
        view * 1  # its value was read once before
        t.add_(100)
        return view * 1

    same(later, torch.arange(24.0).reshape(2, 3, 4), strides=False)


def test_a_view_written_before_a_boundary_and_read_after_it():
    import surestep

    def across(t):
        view = t.t()[1:]
        view.add_(1)
        surestep.sync()
        t.mul_(2)
        surestep.sync()
        return view + 0, t

    same(across, torch.arange(6.0).reshape(2, 3), strides=False)


def test_expanded_tensors_read_but_are_not_written():
    same(lambda t: t.expand(3, 2, 4) + 1, torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory location"):
        torch.ones(2, device="xla").expand(3, 2).add_(1)


def test_a_copy_that_overlaps_itself_is_pytorchs_error():
    tensor = torch.ones(4, device="xla")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        tensor[1:].copy_(tensor[:-1])


OVERLAPS = {  # each writes to a part of x, from one at another place: first where they are apart, so that the call is known
    "add_": lambda x, y, at: x[0:3].add_(x[at : at + 3]),
    "copy_": lambda x, y, at: x[0:3].copy_(x[at : at + 3]),
    "clamp_ by keyword": lambda x, y, at: x[0:3].clamp_(min=x[at : at + 3]),
    "addcmul_": lambda x, y, at: x[0:3].addcmul_(y[0:3], x[at : at + 3]),
    "foreach": lambda x, y, at: torch._foreach_mul_([x[0:3]], [x[at : at + 3]]),
    "out": lambda x, y, at: torch.add(x[at : at + 3], 1, out=x[0:3]),
    "out in another storage": lambda x, y, at: torch.add(x[0:3], 1, out=(x if at < 3 else y)[1:4]),
    "a list": lambda x, y, at: torch.cat([x[at : at + 1], y[0:2]], out=x[0:3]),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_known_write_that_comes_to_overlap_is_pytorchs_error(name):
    def run(device):
        x, y, said = torch.arange(12.0).to(device), torch.arange(12.0).to(device), []
        for at in (8, 6, 3, 2, 1, 9):
            if device == "xla":
                surestep.sync()
            try:
                OVERLAPS[name](x, y, at)
                said.append("taken")
            except RuntimeError as error:
                said.append(str(error))
        return said, x.tolist(), y.tolist()

    said, *_ = run("cpu")
    assert len(set(said)) == 2 and said[0] == "taken"
    assert run("xla") == run("cpu")


def test_aliases_are_aliases_to_pytorch():
    tensor = torch.ones(4, device="xla")
    view, other = tensor[1:], torch.ones(4, device="xla")
    assert torch._C._is_alias_of(tensor, view) and not torch._C._is_alias_of(tensor, other)
    assert tensor.untyped_storage().data_ptr() == view.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    assert view.data_ptr() - tensor.data_ptr() == 4 and view._base is tensor


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.t_(),
        lambda t: t.transpose_(0, 1),
        lambda t: t.unsqueeze_(1),
        lambda t: t.as_strided_((2,), (3,), 1),
        lambda t: t.squeeze_(),
    ],
)
def test_in_place_views_change_the_tensor_itself(change):
    same(lambda t: (change(t), t.add_(1), t.clone())[2], torch.arange(6.0).reshape(2, 3))


def test_an_index_that_moves_costs_one_more_program(metrics):
    import surestep

    data, out = torch.arange(40.0).reshape(20, 2).to("xla"), []
    for i in range(10):
        out.append((data[i] * 2, data[2 * i : 2 * i + 2].sum()))
        surestep.sync()
    for i, (row, total) in enumerate(out):
        assert row.tolist() == [4.0 * i, 4.0 * i + 2] and total.item() == sum(range(4 * i, 4 * i + 4))
    assert metrics().compile.count <= 2


def test_writes_at_an_index_that_moves_cost_one_more_program(metrics):
    import surestep

    buffer = torch.zeros(10, 3, device="xla")
    for i in range(10):
        buffer[i] = float(i)
        surestep.sync()
    assert buffer.tolist() == [[float(i)] * 3 for i in range(10)]
    assert metrics().compile.count <= 4  # the index and the value change: constants, then inputs
