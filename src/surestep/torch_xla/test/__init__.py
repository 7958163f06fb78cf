"""torch_xla.test"""

from surestep.torch_xla import _later

__getattr__ = _later.getter("torch_xla.test")
