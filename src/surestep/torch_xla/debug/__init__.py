"""torch_xla.debug"""

from surestep.torch_xla import _later

__getattr__ = _later.getter("torch_xla.debug")
