"""Random numbers: the same seed gives the same numbers wherever boundaries fall, and no two draws are alike."""

import pytest
import torch
from torch import nn

import surestep


def draws(boundaries):
    torch.manual_seed(11)
    found = []
    for i in range(6):
        if i in boundaries:
            surestep.sync()
        found.append(torch.rand(8, device="xla"))
        found.append(nn.functional.dropout(torch.ones(8, device="xla"), 0.5))
        found.append(torch.empty(8, device="xla").normal_())
    return torch.stack(found).cpu()


def test_boundaries_do_not_change_the_numbers():
    assert torch.equal(draws(()), draws((1, 2, 5)))
    assert torch.equal(draws(()), draws(range(6)))


def test_every_draw_is_another_one():
    rows = draws(())[0::3]
    assert len({tuple(row.tolist()) for row in rows}) == 6


def test_masks_differ_from_step_to_step_in_one_program(metrics):
    torch.manual_seed(0)
    dropout, x, masks = nn.Dropout(0.5), torch.ones(64).to("xla"), []
    for _ in range(4):
        with surestep.step():
            masks.append(dropout(x))
    assert metrics().compile.count == 1
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


def test_seeding_again_with_the_same_seed_starts_again():
    torch.manual_seed(5)
    first = torch.rand(4, device="xla")
    torch.manual_seed(5)
    assert torch.equal(first.cpu(), torch.rand(4, device="xla").cpu())
    surestep.manual_seed(5)
    assert torch.equal(first.cpu(), torch.rand(4, device="xla").cpu())
    torch.xla.manual_seed(6)
    assert not torch.equal(first.cpu(), torch.rand(4, device="xla").cpu())


def test_the_state_can_be_read_and_set_without_a_boundary(metrics):
    state = torch.xla.get_rng_state()
    first = torch.rand(4, device="xla")
    torch.xla.set_rng_state(state)
    second = torch.rand(4, device="xla")
    assert metrics().boundaries.total() == 0
    assert torch.equal(first.cpu(), second.cpu())
    with pytest.raises(RuntimeError, match="ByteTensor"):
        torch.xla.set_rng_state(torch.zeros(3))


def test_the_cpu_generator_is_not_moved_by_the_device():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    x = torch.rand(100, device="xla")
    nn.functional.dropout(x, 0.3).sum().item()
    torch.multinomial(torch.ones(5, device="xla"), 2)
    assert torch.equal(torch.rand(3), expected)


def test_a_cpu_generator_seeds_a_draw():
    def drawn():
        return torch.rand(4, device="xla", generator=torch.Generator().manual_seed(1)).cpu()

    assert torch.equal(drawn(), drawn())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_mask_again(reentrant):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).to("xla")
    x = torch.ones(2, 16, device="xla", requires_grad=True)
    with surestep.step():
        out = checkpoint(model, x, use_reentrant=reentrant)
        out.sum().backward()
    kept = (out != 0).cpu().double()
    expected = kept @ model[0].weight.detach().cpu().double() * 2
    torch.testing.assert_close(x.grad.cpu().double(), expected, rtol=1e-5, atol=1e-5)


FILLS = {
    "uniform_": lambda x, number: x.uniform_(0, number),
    "normal_": lambda x, number: x.normal_(0, number),
    "log_normal_": lambda x, number: x.log_normal_(1, number),
    "exponential_": lambda x, number: x.exponential_(number),
    "cauchy_": lambda x, number: x.cauchy_(0, number),
    "geometric_": lambda x, number: x.geometric_(number),
    "bernoulli_": lambda x, number: x.bernoulli_(number),
    "dropout": lambda x, number: torch.nn.functional.dropout(x, number),
    "alpha_dropout": lambda x, number: torch.nn.functional.alpha_dropout(x, number),
    "rrelu": lambda x, number: torch.nn.functional.rrelu(-x, 0.05, number, training=True),
    "rand": lambda x, number: torch.rand_like(x) * number,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_the_same_numbers_as_a_constant_and_as_an_input(name, dtype):
    """A number is a constant of the program until it changes: that must not show in what is drawn."""

    def drawn(number):
        torch.manual_seed(7)
        return FILLS[name](torch.ones(200, device="xla", dtype=dtype), number).float().cpu()

    first = drawn(0.25)
    drawn(0.375)
    again = drawn(0.25)
    torch.testing.assert_close(again, first, rtol=1e-6, atol=1e-6)
