"""torch_xla.experimental.gradient_accumulation"""

from surestep.control.accumulation import gradient_accumulation

__all__ = ["gradient_accumulation"]
