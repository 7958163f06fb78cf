"""torch_xla.amp.autocast_mode: where torch_xla's own module has it."""

from surestep.torch_xla.amp import autocast

__all__ = ["autocast"]
