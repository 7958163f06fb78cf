"""What torch_xla has renamed or removed over its history: the table that `check` tells from and `migrate` rewrites by.

``since``: the release that has the replacement, ``removed``: the first release without the old name ('2.9' where only that is known).
What 2.9 has and hasn't was read from its wheel.
"""

from __future__ import annotations

from dataclasses import dataclass

_XM = "torch_xla.core.xla_model"
_XR = "torch_xla.runtime"
_PJRT = "torch_xla.experimental.pjrt"
_SHARDING = "torch_xla.experimental.xla_sharding"
_SPMD = "torch_xla.distributed.spmd"


@dataclass(frozen=True, slots=True)
class Old:
    """An old name. ``new`` is a name for the same thing, with the same arguments but for those in ``without``."""

    say: str
    since: str
    removed: str | None = None
    new: str | None = None
    without: tuple[str, ...] = ()  # arguments that are gone, by name; positional ones are then refused
    warns: bool = True  # torch_xla itself says so


def _renamed(new: str, since: str, removed: str | None = None, without: tuple[str, ...] = (), warns: bool = True) -> Old:
    return Old(f"Write: `{new}`.", since, removed, new, without, warns)


NAMES: dict[str, Old] = {
    f"{_XM}.mark_step": _renamed("torch_xla.sync", "2.2"),
    f"{_XM}.xla_device": _renamed("torch_xla.device", "2.2", without=("devkind",)),
    f"{_XM}.xrt_world_size": _renamed(f"{_XR}.world_size", "2.1", "2.7", without=("defval",)),
    f"{_XM}.get_ordinal": _renamed(f"{_XR}.global_ordinal", "2.1", "2.7", without=("defval",)),
    f"{_XM}.get_local_ordinal": _renamed(f"{_XR}.local_ordinal", "2.1", without=("defval",), warns=False),
    f"{_XM}.parse_xla_device": Old("It is private now: take what you need from `str(device)`.", "2.5", "2.7"),
    f"{_XM}.xla_device_hw": Old("Write: `torch_xla.runtime.device_type()`, which takes no argument.", "2.1", warns=False),
    f"{_XM}.xla_real_devices": Old("Write: `torch_xla.real_devices()`, which takes no argument.", "2.2", warns=False),
    f"{_XM}.get_xla_supported_devices": Old("Write: `torch_xla.devices()`, which gives devices, not strings.", "2.2", warns=False),
    "torch_xla.distributed.xla_multiprocessing.spawn": Old(
        "Write: `torch_xla.launch(fn, args)`, which takes the number of processes from the runtime.", "2.4", warns=False
    ),
    "torch_xla.distributed.xla_multiprocessing.launch": _renamed("torch_xla.launch", "2.4", warns=False),
    "torch_xla.distributed.parallel_loader.ParallelLoader": Old("Write: `MpDeviceLoader(loader, device)`.", "1.7", warns=False),
    "torch_xla.experimental.compile": _renamed("torch_xla.compile", "2.5", "2.9"),
    "torch_xla.experimental_compile": _renamed("torch_xla.compile", "2.4", "2.9"),
    "torch_xla.amp.GradScaler": Old("Write: `torch.amp.GradScaler('xla')`; bfloat16 needs none.", "2.3", "2.9"),
    "torch_xla.amp.autocast": Old("Write: `torch.autocast('xla', ...)`.", "1.13", warns=False),
    "torch_xla.set_custom_compile_options": Old("Give XLA's options in LIBTPU_INIT_ARGS or XLA_FLAGS.", "2.7", "2.9"),
    "torch_xla.core.xla_env_vars.HOST_WORLD_SIZE": Old("Write: `torch_xla.runtime.process_count()`.", "2.1", "2.2"),
    "torch_xla.core.xla_env_vars.HOST_ORDINAL": Old("Write: `torch_xla.runtime.process_index()`.", "2.1", "2.2"),
    **{
        f"{_PJRT}.{name}": _renamed(f"{_XR}.{name}", "2.1", "2.4")
        for name in [
            "global_ordinal",
            "local_ordinal",
            "world_size",
            "device_type",
            "set_device_type",
            "process_index",
            "process_count",
            "local_process_count",
            "local_device_count",
            "addressable_device_count",
            "global_device_count",
            "host_index",
        ]
    },
    f"{_PJRT}.using_pjrt": Old("There is no other runtime any more: leave the question out.", "2.1", "2.4"),
    f"{_PJRT}.xla_device": _renamed("torch_xla.device", "2.1", "2.4"),
    f"{_PJRT}.rendezvous": _renamed(f"{_XM}.rendezvous", "2.1", "2.4"),
    f"{_PJRT}.broadcast_master_param": _renamed(f"{_XM}.broadcast_master_param", "2.1", "2.4"),
    **{
        f"{_SHARDING}.{name}": _renamed(f"{_SPMD}.{name}", "2.2", "2.4")
        for name in [
            "Mesh",
            "HybridMesh",
            "mark_sharding",
            "clear_sharding",
            "ShardingSpec",
            "ShardingType",
            "XLAShardedTensor",
            "XLAPatchedLinear",
        ]
    },
    "torch_xla.core.xla_model.xla_rendezvous": _renamed(f"{_XM}.rendezvous", "2.0", warns=False),
}

MODULES: dict[str, Old] = {
    "torch_xla.experimental.pjrt_backend": _renamed("torch_xla.distributed.xla_backend", "2.1", warns=False),
    _PJRT: Old("Write: `import torch_xla.runtime`, which has its functions.", "2.1", "2.4"),
    _SHARDING: Old("Write: `import torch_xla.distributed.spmd`.", "2.2", "2.4"),
    "torch_xla.experimental.xla_sharded_tensor": Old("Write: `import torch_xla.distributed.spmd`.", "2.2", "2.4"),
    "torch_xla.experimental.tpu": _renamed("torch_xla._internal.tpu", "2.1", "2.4"),
    "torch_xla.distributed.data_parallel": Old(
        "Threads in one process are no longer supported: write `torch_xla.launch(fn, args)`.", "2.0", warns=False
    ),
}

STRINGS: dict[str, Old] = {"pjrt://": Old("Write: `xla://`.", "2.1", new="xla://")}

_BF16 = "Write: `torch.autocast('xla', dtype=torch.bfloat16)`, or `model.to(torch.bfloat16)`."
_RUNTIME = "The runtime is PJRT: set PJRT_DEVICE."

ENVIRONMENT: dict[str, Old] = {
    "XLA_USE_BF16": Old(_BF16, "2.6"),
    "XLA_DOWNCAST_BF16": Old(_BF16, "2.6"),
    "XLA_USE_FP16": Old(_BF16, "2.5", "2.7"),
    "XLA_USE_F16": Old(_BF16, "1.13", "2.1"),
    "XLA_DOWNCAST_FP16": Old(_BF16, "2.5", "2.7"),
    **{
        name: Old(_RUNTIME, "2.0", "2.2")
        for name in [
            "XRT_TPU_CONFIG",
            "XRT_WORKERS",
            "XRT_DEVICE_MAP",
            "XRT_MESH_SERVICE_ADDRESS",
            "XRT_MULTI_PROCESSING_DEVICE",
            "XRT_SHARD_WORLD_SIZE",
            "XRT_SHARD_ORDINAL",
            "XRT_HOST_WORLD_SIZE",
            "XRT_HOST_ORDINAL",
            "XRT_LOCAL_WORKER",
            "COLAB_TPU_ADDR",
        ]
    },
}
