"""``scan_layers``: layers of one kind, one after the other, compiled once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from surestep.control.scan import Body, Part, computes_again, rounds
from surestep.control.trees import Tree


def scan_layers(
    layers: Iterable[nn.Module], input_data: Any, partition_fn: Callable[..., Any] | None = None, is_layer_pure: bool = False
) -> Any:
    """``input_data`` through all layers, as ``nn.Sequential(*layers)`` does, with the first layer's code recorded and compiled for all.

    The layers must be of one structure, and compute the same but for their parameters and buffers. What a layer writes to its buffers is
    written to those of each layer.

    Args:
        layers: Modules on the device.
        input_data: What the first layer takes: a tensor, or a tuple of its arguments. Each layer returns what the next takes.
        partition_fn: As of ``scan``.
        is_layer_pure: The layers do the same for inputs of the same shapes: their Python is run at the first call only.

    Raises:
        ValueError: The layers differ: in their classes, in what PyTorch's modules were made with, in mode, or in parameters or buffers.
    """
    layers = list(layers)
    if not layers:
        return input_data
    parameters = [dict(layer.named_parameters()) for layer in layers]
    buffers = [dict(layer.named_buffers()) for layer in layers]
    _check_same_tensors(parameters)
    _check_same_tensors(buffers)
    kinds = _kinds(layers[0])
    for position, layer in enumerate(layers[1:], 1):
        _check_alike(kinds, layer, position)
    names = [*parameters[0], *buffers[0]]
    listed = [[each[name] for each in (parameters if name in parameters[0] else buffers)] for name in names]
    parts = [Part(Tree("scan_layers", f"a layer's {name}", tensors).tensors, True) for name, tensors in zip(names, listed, strict=True)]
    first, of_buffers = layers[0], set(buffers[0])
    mode = tuple(module.training for module in first.modules())

    def one_layer(carry: Any, own: dict[str, torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        before = {name: own[name]._storage.ref for name in of_buffers}  # type: ignore[missing-attribute] (stand-ins are xla tensors)
        given = dict(own)
        output = torch.func.functional_call(first, given, carry, strict=True)
        for name in own.keys() - of_buffers:
            if given[name] is not own[name]:
                raise RuntimeError(f"scan_layers: a layer replaces its parameter {name}, which can't be done for all layers at once")
        written = {
            name: given[name]
            for name, ref in before.items()
            if given[name] is not own[name] or own[name]._storage.ref is not ref  # type: ignore[missing-attribute]
        }
        return output, written

    body = Body(
        "scan_layers", one_layer, lambda tensors: dict(zip(names, tensors, strict=True)), (tuple(names), mode), first, len(parameters[0])
    )
    again = computes_again("scan_layers", partition_fn)
    output, written = rounds(body, Tree("scan_layers", "input_data", input_data), parts, len(layers), again, is_layer_pure)
    with torch.no_grad():
        for name, values in written.items():
            for position, each in enumerate(buffers):
                each[name].copy_(values[position])
    return output


class _Kind(NamedTuple):
    """What must be the same of a module in all layers."""

    kind: type
    training: bool
    options: dict[str, Any]  # what one of PyTorch's modules was made with


def _kinds(layer: nn.Module) -> dict[str, _Kind]:
    """The modules of a layer, itself first."""
    found = {}
    for name, module in layer.named_modules():
        options: dict[str, Any] = {}
        if type(module).__module__.startswith("torch.nn."):
            options = {key: value for key, value in vars(module).items() if type(value) in _PLAIN and key != "training"}
        found[name] = _Kind(type(module), module.training, options)
    return found


_PLAIN = {bool, int, float, str, tuple}


def _check_alike(first: dict[str, _Kind], layer: nn.Module, position: int) -> None:
    """``ValueError`` where a layer is not made of the same modules as the first."""
    kinds = _kinds(layer)
    if kinds == first:
        return
    where = f"scan_layers: layer {position} is not like the first one"
    if kinds.keys() != first.keys():
        one, two = sorted(first.keys() - kinds.keys()), sorted(kinds.keys() - first.keys())
        raise ValueError(f"{where}: mismatched keys. Modules only there: {one}, only here: {two}")
    name = next(name for name, kind in kinds.items() if kind != first[name])
    its, mine, path = kinds[name], first[name], name or "the layer"
    if its.kind is not mine.kind:
        raise ValueError(f"{where}: mismatched keys or classes. {path} is a {its.kind.__name__}, there a {mine.kind.__name__}")
    if its.training is not mine.training:
        raise ValueError(f"{where}: {path} is in {'training' if its.training else 'evaluation'} mode, and that one isn't")
    option = next(key for key in {**mine.options, **its.options} if its.options.get(key) != mine.options.get(key))
    raise ValueError(f"{where}: {path}.{option} is {its.options.get(option)!r}, there it is {mine.options.get(option)!r}")


def _check_same_tensors(tensors: Sequence[Mapping[str, torch.Tensor]]) -> None:
    first = tensors[0]
    for position, each in enumerate(tensors[1:], 1):
        if each.keys() != first.keys():
            missing, extra = sorted(first.keys() - each.keys()), sorted(each.keys() - first.keys())
            raise ValueError(f"scan_layers: layer {position} has mismatched keys. Missing keys: {missing}. Extra keys: {extra}.")
        for name, tensor in each.items():
            if tensor.shape != first[name].shape or tensor.dtype is not first[name].dtype:
                raise ValueError(
                    f"scan_layers: Shape mismatch for '{name}' in layer {position}: expected {tuple(first[name].shape)} of "
                    f"{first[name].dtype}, got {tuple(tensor.shape)} of {tensor.dtype}."
                )
