"""torch_xla.distributed.parallel_loader (`pl`)."""

from surestep.loop.loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader
from surestep.torch_xla import _later

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]

__getattr__ = _later.getter("torch_xla.distributed.parallel_loader")
