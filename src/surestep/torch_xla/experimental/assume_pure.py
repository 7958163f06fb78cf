"""torch_xla.experimental.assume_pure"""

from surestep.control.assume import PureModule, assume_pure

__all__ = ["PureModule", "assume_pure"]
