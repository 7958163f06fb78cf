"""torch_xla.distributed.spmd.debugging: shardings drawn in the terminal."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from surestep.execute.devices import device_kind
from surestep.execute.spmd import all_devices


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> Table:
    """Draws which devices hold which part of a tensor; the keywords are ``visualize_sharding``'s. Returns the table."""
    return visualize_sharding(t.sharding_spec, **kwargs)  # type: ignore[missing-attribute] (an xla tensor has it)


def visualize_sharding(sharding: str, use_color: bool = True, scale: float = 1.0, min_width: int = 9, max_width: int = 80) -> Table:
    """Draws a sharding: a row a tile of the first dimension, a column a tile of the others. Returns the table.

    Args:
        sharding: As ``sharding_spec`` gives it: ``'{devices=[2,1]0,1}'``, ``'{replicated}'``.
        use_color: Whether each part has a colour, rather than lines around it.
        scale: By how much cells are larger.
        min_width: Of a cell, in columns.
        max_width: Of the table, in columns.

    Raises:
        ValueError: The text isn't a sharding.
    """
    rows, columns, holders = _grid(sharding)
    console = Console(width=max_width)
    coloured = use_color and console.color_system is not None
    table = Table(show_header=False, show_lines=not coloured, padding=0, pad_edge=False, show_edge=not coloured)
    width = max(min_width, int(9 * scale))
    for _ in range(columns):
        table.add_column(justify="center", min_width=width, vertical="middle")
    blank = "\n" * int(scale)
    for row in range(rows):
        cells = holders[row * columns : (row + 1) * columns]
        texts = [f"{blank}{device_kind()} {','.join(map(str, cell))}{blank}" for cell in cells]
        if coloured:
            texts = [f"[on color({_colour(row * columns + column)})]{text}[/]" for column, text in enumerate(texts)]
        table.add_row(*texts)
    console.print(table)
    return table


def _colour(part: int) -> int:
    """Of the terminal's 256, six that can be told apart."""
    return 18 + 36 * (part % 6)


def _grid(sharding: str) -> tuple[int, int, list[list[int]]]:
    """Rows, columns, and the devices of each cell."""
    if sharding == "{replicated}":
        return 1, 1, [list(range(len(all_devices())))]
    match = re.fullmatch(r"\{devices=\[([\d,]+)\]([\d,]+)( last_tile_dim_replicate)?\}", sharding)
    if match is None:
        raise ValueError(f"{sharding!r} is no sharding: mark the tensor first, or make a boundary after which it has one")
    counts, devices = ([int(number) for number in group.split(",")] for group in match.group(1, 2))
    copies = counts.pop() if match[3] else 1
    cells = [devices[first : first + copies] for first in range(0, len(devices), copies)]
    return counts[0], math.prod(counts[1:]), cells
