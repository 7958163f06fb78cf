"""torch_xla.experimental.scan"""

from surestep.control.scan import scan

__all__ = ["scan"]
