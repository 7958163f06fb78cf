"""torch_xla.distributed.fsdp.state_dict_utils: from the processes' sharded checkpoints to one of the module as it was before.

The names are torch_xla's, in which each layer of wrapping is a part: ``layer.weight`` of an inner unit is
``_fsdp_wrapped_module.layer._fsdp_shard_FSDP_SHARD_SEPARATOR_...``. Checkpoints that torch_xla has written can be read too.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from glob import glob
from typing import Any

import torch

WRAPPED = "_fsdp_wrapped_module"
FLATTENED = "_fpw_module"  # by which torch_xla flattens parameters
SHARD = "_fsdp_shard"
SEPARATOR = "_FSDP_SHARD_SEPARATOR_"

State = Mapping[str, torch.Tensor]


def shard_name(name: str) -> str:
    """The name of the shard of a parameter."""
    return f"{SHARD}.{name}".replace(".", SEPARATOR)


def original_name(name: str) -> str:
    """The name of a parameter or buffer in the module as it was before it was wrapped."""
    return ".".join(part for part in name.split(".") if part not in (WRAPPED, FLATTENED))


def consolidate_sharded_state_dicts(state_dict_list: Sequence[State], shard_metadata: Mapping[str, Any]) -> OrderedDict[str, torch.Tensor]:
    """The state dict of the module as it was before it was wrapped.

    Args:
        state_dict_list: ``model.state_dict()`` of each process, in the order of their ranks.
        shard_metadata: ``model.get_shard_metadata()`` of any of them.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise ValueError(f"{len(state_dict_list)} state dicts of a model that was sharded over {shard_metadata['world_size']} processes")
    whole: OrderedDict[str, torch.Tensor] = OrderedDict()
    for name, value in state_dict_list[0].items():
        prefix, _, last = name.rpartition(".")
        if not last.startswith(SHARD):
            dtype = shard_metadata["buffer_info"].get(name, {}).get("_orig_dtype", value.dtype)
            whole[original_name(name)] = value.to(dtype)
            continue
        info = shard_metadata["shard_info"][prefix][last]
        full = torch.cat([state[name] for state in state_dict_list])
        full = full.reshape(-1)[: math.prod(info["_orig_size"])].view(info["_orig_size"])
        within = f"{prefix}.{info['_orig_name']}" if prefix else info["_orig_name"]
        whole.update(_unflattened(within, full, shard_metadata["flatten_info"]))
    for name, other in shard_metadata.get("shared_info", {}).items():
        whole[name] = whole[other]
    return whole


def _unflattened(name: str, value: torch.Tensor, flatten_info: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A parameter by its name; those that were flattened into one by theirs."""
    key = name.replace(f"{FLATTENED}.", "")
    if key not in flatten_info:
        return {original_name(name): value}
    names, shapes, counts = flatten_info[key]
    prefix = key.rpartition(".")[0]
    parts = zip(names, value.split(tuple(counts)), shapes, strict=True)
    return {original_name(f"{prefix}.{part}"): data.view(shape) for part, data, shape in parts}


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[OrderedDict[str, torch.Tensor], str | None]:
    """Makes one checkpoint of the processes' own.

    Args:
        ckpt_prefix: The files that match ``ckpt_prefix + ckpt_suffix`` are read: each a dict with ``model``, the model's ``state_dict()``,
            and ``shard_metadata``, its ``get_shard_metadata()``.
        ckpt_suffix: See ``ckpt_prefix``.
        save_path: Where ``{"model": state_dict}`` is saved; ``ckpt_prefix + "_consolidated.pth"`` if it is empty.
        save_model: Whether it is saved.

    Returns:
        The state dict of the module as it was before it was wrapped, and where it was saved.
    """
    pattern = ckpt_prefix + ckpt_suffix
    paths = glob(pattern)
    if not paths:
        raise FileNotFoundError(f"no files match {pattern}")
    found = {}
    for path in paths:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        metadata = checkpoint["shard_metadata"]
        found[metadata["rank"]] = checkpoint["model"], metadata
    size = next(iter(found.values()))[1]["world_size"]
    if sorted(found) != list(range(size)) or len(paths) != size:
        raise ValueError(
            f"{len(paths)} file(s) match {pattern}, of rank(s) {sorted(found)}, and the model was sharded over {size} processes: there "
            f"must be one file of each rank from 0 to {size - 1}, and no others"
        )
    whole = consolidate_sharded_state_dicts([found[rank][0] for rank in range(size)], found[0][1])
    if not save_model:
        return whole, None
    target = save_path or f"{ckpt_prefix}_consolidated.pth"
    torch.save({"model": whole}, target)
    return whole, target
