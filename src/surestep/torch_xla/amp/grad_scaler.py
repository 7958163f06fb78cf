"""torch_xla.amp.grad_scaler: where torch_xla's own module has it."""

from surestep.torch_xla.amp import GradScaler

__all__ = ["GradScaler"]
