"""torch_xla.experimental.scan"""

from surestep.control.scan import scan
from surestep.torch_xla import _later

__all__ = ["scan"]

__getattr__ = _later.getter("torch_xla.experimental.scan")
