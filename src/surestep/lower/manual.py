"""Values of which each device has a part of its own, between ``enable_manual_sharding`` and ``disable_manual_sharding``.

An operation on them is done by each device on its part. To XLA such a value is one array with the parts along a new first dimension, split
over all devices; so it is kept in a storage, too.
"""

import jax
from jax.sharding import PartitionSpec


class Parts:
    """A value in parts: ``stacked`` has one a device, along the first dimension."""

    def __init__(self, stacked, mesh):
        self.stacked = stacked
        self.mesh = mesh


def _each(mesh, function, operands, given, taken):
    """``function`` on each device; a mesh of one device has no axes to map over."""
    if not mesh.axis_names:
        return function(*operands)
    return jax.shard_map(function, mesh=mesh, in_specs=tuple(given), out_specs=taken, check_vma=False)(*operands)


def _all(mesh):
    return PartitionSpec(mesh.axis_names or None)


def parts(value, sharding):
    """An array's parts, as the sharding splits it."""
    mesh = sharding.mesh
    return Parts(_each(mesh, lambda part: part[None], [value], [sharding.spec], _all(mesh)), mesh)


def whole(value, sharding):
    """The array that has these parts. Where the sharding says that devices have copies, one of them counts."""
    mesh = sharding.mesh
    return _each(mesh, lambda part: part[0], [value.stacked], [_all(mesh)], sharding.spec)


def apply(function, operands):
    """``function(*operands)``, a list, on each device, if some operand is in parts; the others are whole on each device."""
    meshes = [operand.mesh for operand in operands if isinstance(operand, Parts)]
    if not meshes:
        return function(*operands)
    mesh = meshes[0]
    split = [isinstance(operand, Parts) for operand in operands]

    def on_each(*given):
        results = function(*(value[0] if part else value for value, part in zip(given, split, strict=True)))
        return [result[None] for result in results]

    arrays = [operand.stacked if part else operand for operand, part in zip(operands, split, strict=True)]
    specs = [_all(mesh) if part else PartitionSpec() for part in split]
    return [Parts(result, mesh) for result in _each(mesh, on_each, arrays, specs, _all(mesh))]


def stored(value):
    """What a storage keeps of a value."""
    return value.stacked if isinstance(value, Parts) else value
