"""Packed sequences are made on the device; their sizes stay on the CPU."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from both import same


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [[4, 2, 2], [4, 4, 4], [4, 3, 1]])
def test_packing_and_its_gradient(metrics, batch_first, lengths):
    def packed(x):
        data, sizes, *_ = pack_padded_sequence(x, torch.tensor(lengths), batch_first)
        assert sizes.device.type == "cpu"
        return data, torch.autograd.grad((data * data).sum(), x)

    x = torch.arange(24.0).reshape((3, 4, 2) if batch_first else (4, 3, 2)).requires_grad_()
    same(packed, x)
    assert not metrics().fallbacks


def test_a_recurrent_network_takes_packed_sequences(metrics):
    packed = pack_padded_sequence(torch.ones(2, 3, 4, device="xla"), torch.tensor([3, 2]), batch_first=True)
    out, _ = torch.nn.GRU(4, 5, batch_first=True, device="xla")(packed)
    padded, lengths = pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (2, 3, 5) and lengths.tolist() == [3, 2] and padded.device.type == "xla"
    assert not metrics().fallbacks


@pytest.mark.parametrize("lengths", [[2, 3], [3, 0], [3]])
def test_wrong_lengths_are_refused_in_pytorchs_words(lengths):
    with pytest.raises(RuntimeError) as theirs:
        pack_padded_sequence(torch.ones(3, 2), torch.tensor(lengths))
    with pytest.raises(RuntimeError) as ours:
        pack_padded_sequence(torch.ones(3, 2, device="xla"), torch.tensor(lengths))
    assert str(ours.value) == str(theirs.value)


def test_lengths_on_the_device_are_refused_as_on_cuda():
    with pytest.raises(RuntimeError, match=r"should be a 1D CPU int64 tensor, but got 1D xla:0 tensor. Write lengths.cpu\(\)"):
        pack_padded_sequence(torch.ones(3, 2, device="xla"), torch.tensor([3, 2], device="xla"))
