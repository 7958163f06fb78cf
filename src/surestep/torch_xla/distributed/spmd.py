"""torch_xla.distributed.spmd: nothing of it is there yet, and each name says so. Libraries import the module by torch_xla's version
alone.
"""

from surestep.torch_xla import _later

__getattr__ = _later.getter("torch_xla.distributed.spmd")
