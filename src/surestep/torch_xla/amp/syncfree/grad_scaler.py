"""torch_xla.amp.syncfree.grad_scaler: where torch_xla has a scaler of its own for these optimizers. Here it is the one for all."""

from surestep.torch_xla.amp import GradScaler

__all__ = ["GradScaler"]
