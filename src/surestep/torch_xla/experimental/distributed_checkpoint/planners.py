"""What of a state each process writes and reads: of a tensor that is split over the devices, the parts of its own devices."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from surestep.tensor.sharding import XLAShard
from surestep.torch_xla.experimental.distributed_checkpoint._helpers import _CpuShards, _is_sharded_tensor

__all__ = ["SPMDLoadPlanner", "SPMDSavePlanner"]


def _chunk(shard: XLAShard, shape: torch.Size) -> ChunkStorageMetadata:
    """Where a part lies in the whole."""
    indices = [slice(0, size) for size in shape] if shard.indices is ... else shard.indices
    return ChunkStorageMetadata(
        offsets=torch.Size(part.start for part in indices), sizes=torch.Size(part.stop - part.start for part in indices)
    )


class SPMDSavePlanner(DefaultSavePlanner):
    """For ``torch.distributed.checkpoint.save``: tensors that are split are written part by part, each part once.

    What is written can be read on any number of devices, and by PyTorch's own planner.
    """

    def set_up_planner(self, state_dict: Any, storage_meta: StorageMeta | None = None, is_coordinator: bool = False) -> None:
        """Takes the state; tensors that are split, or are ``_CpuShards``, apart from the others."""
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.sharded_state_dict: dict[str, _CpuShards] = {}
        self.unsharded_state_dict: dict[str, Any] = {}
        for name, value in self.state_dict.items():
            if isinstance(value, _CpuShards):
                self.sharded_state_dict[name] = value
            elif _is_sharded_tensor(value):
                self.sharded_state_dict[name] = _CpuShards.of(value)
            else:
                self.unsharded_state_dict[name] = value

    def create_local_plan(self) -> SavePlan:
        """What this process writes."""
        plan = create_default_local_save_plan(self.unsharded_state_dict, self.is_coordinator)
        items = list(plan.items)
        for name, parts in self.sharded_state_dict.items():
            properties = TensorProperties(dtype=parts.global_dtype)
            for number, shard in enumerate(parts.shards):
                if shard.replica_id == 0:
                    chunk = _chunk(shard, parts.global_shape)
                    data = TensorWriteData(chunk=chunk, properties=properties, size=parts.global_shape)
                    index = MetadataIndex(name, chunk.offsets, number)
                    items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        planner_data = self.mappings if self.flatten_state_dict else None
        self.plan = dataclasses.replace(plan, items=items, planner_data=planner_data)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A whole value, or a part of one that is split."""
        parts = self.sharded_state_dict.get(index.fqn)
        return self.unsharded_state_dict[index.fqn] if parts is None else parts.shards[index.index].data  # type: ignore[bad-index]


class SPMDLoadPlanner(DefaultLoadPlanner):
    """For ``torch.distributed.checkpoint.load``: of tensors that are split each process reads the parts of its own devices, however the
    checkpoint is split. They are put in place when all of them are there.
    """

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Takes the state that is to be filled; tensors that are split apart from the others."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.sharded_state_dict = {name: value for name, value in self.state_dict.items() if _is_sharded_tensor(value)}
        self.unsharded_state_dict = {name: value for name, value in self.state_dict.items() if name not in self.sharded_state_dict}
        self._shards: dict[str, list[XLAShard]] = {}
        self._missing: Counter[str] = Counter()

    def create_local_plan(self) -> LoadPlan:
        """What this process reads. ``RuntimeError`` for a tensor that the checkpoint lacks, or has in another shape."""
        assert self.metadata is not None
        plan = create_default_local_load_plan(self.unsharded_state_dict, self.metadata, not self.allow_partial_load)
        items = list(plan.items)
        for name, tensor in self.sharded_state_dict.items():
            found = self.metadata.state_dict_metadata.get(name)
            if not isinstance(found, TensorStorageMetadata):
                raise RuntimeError(f"Missing key in checkpoint state_dict: {name}.")
            if found.size != tensor.shape:
                raise RuntimeError(f"{name} has the shape {list(found.size)} in the checkpoint, and {list(tensor.shape)} here")
            self._shards[name] = tensor.local_shards
            chunks = [_chunk(shard, tensor.shape) for shard in self._shards[name]]
            reads = create_read_items_for_chunk_list(name, found, chunks)
            self._missing[name] = len(reads)
            items += reads
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Where what is read goes."""
        shards = self._shards.get(read_item.dest_index.fqn)
        if shards is None:
            return super().resolve_tensor(read_item)
        part = shards[read_item.dest_index.index].data  # type: ignore[bad-index]
        for dimension, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(dimension, start, length)
        return part

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """What was read is there; the last part of a tensor puts all of it in its place."""
        name = read_item.dest_index.fqn
        if name not in self._shards:
            super().commit_tensor(read_item, tensor)
            return
        self._missing[name] -= 1
        if not self._missing[name]:
            self.sharded_state_dict[name].load_local_shards_(self._shards[name])
