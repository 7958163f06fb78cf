"""torch_xla.distributed.xla_backend: importing it makes the process group 'xla' known to torch.distributed."""

from surestep.parallel.process_group import ProcessGroupXla, register
from surestep.torch_xla import _later

__all__ = ["ProcessGroupXla"]

register()

__getattr__ = _later.getter("torch_xla.distributed.xla_backend")
