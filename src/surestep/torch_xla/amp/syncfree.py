"""torch_xla.amp.syncfree: optimizers whose step under a GradScaler reads no value. Here PyTorch's own are so."""

from torch.optim import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
