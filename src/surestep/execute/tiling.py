"""How an array lies over the devices, in XLA's terms: tiles along each dimension, and the devices that hold each tile."""

from __future__ import annotations

import enum
import itertools
from typing import Any, NamedTuple

from surestep.execute.spmd import positions


class ShardingType(enum.IntEnum):
    """XLA's kinds of sharding, with its numbers."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


class Tiling(NamedTuple):
    """``counts`` are the tiles along each dimension; ``holders`` the positions of the devices that hold a tile, tile by tile, the last
    dimension's first.
    """

    counts: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]

    @property
    def kind(self) -> ShardingType:
        """Copies everywhere, parts, or copies of parts."""
        if len(self.holders) == 1:
            return ShardingType.REPLICATED
        return ShardingType.TILED if len(self.holders[0]) == 1 else ShardingType.PARTIAL

    def __str__(self) -> str:
        """As XLA writes it: ``{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}``."""
        if self.kind is ShardingType.REPLICATED:
            return "{replicated}"
        copies = len(self.holders[0])
        counts = (*self.counts, copies) if copies > 1 else self.counts
        devices = ",".join(str(position) for holders in self.holders for position in holders)
        return f"{{devices=[{','.join(map(str, counts))}]{devices}{' last_tile_dim_replicate' if copies > 1 else ''}}}"

    def replica(self, position: int) -> int:
        """Which of the copies of its tile a device holds."""
        return next(holders.index(position) for holders in self.holders if position in holders)


def tiling(sharding: Any, shape: tuple[int, ...]) -> Tiling:
    """The tiling of a JAX sharding of an array of this shape."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        start = tuple(part.start or 0 for part in index)
        holders.setdefault(start, []).append(positions()[device])
    starts = [sorted({start[dimension] for start in holders}) for dimension in range(len(shape))]
    tiles = itertools.product(*starts)
    return Tiling(tuple(map(len, starts)), tuple(tuple(sorted(holders[tile])) for tile in tiles))
