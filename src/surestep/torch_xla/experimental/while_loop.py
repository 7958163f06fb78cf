"""torch_xla.experimental.while_loop"""

from surestep.control.loops import while_loop

__all__ = ["while_loop"]
