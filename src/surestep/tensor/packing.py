"""Packing of padded sequences: the elements of all sequences' first steps, then those of all second steps, and so on."""

from __future__ import annotations

import itertools

import torch


def pack_padded_sequence(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The packed elements, and how many sequences there are at each step: on the CPU, where PyTorch wants them, as the lengths are."""
    if lengths.device.type != "cpu":
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.ndim}D {lengths.device} tensor. Write lengths.cpu(): "
            f"they decide shapes."
        )
    checked = torch.empty(padded.shape, device="meta")
    sizes = torch._pack_padded_sequence(checked, lengths, batch_first)[1]
    steps = padded.transpose(0, 1) if batch_first else padded
    parts, start = [], 0
    for count, group in itertools.groupby(sizes.tolist()):
        stop = start + len(list(group))
        parts.append(steps[start:stop, :count].flatten(0, 1))
        start = stop
    return torch.cat(parts), sizes
