"""torch_xla.experimental.scan_layers"""

from surestep.control.layers import scan_layers

__all__ = ["scan_layers"]
