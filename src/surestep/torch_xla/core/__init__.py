"""torch_xla.core"""

from surestep.torch_xla import _later

__getattr__ = _later.getter("torch_xla.core")
