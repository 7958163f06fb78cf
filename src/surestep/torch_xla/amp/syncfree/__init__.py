"""torch_xla.amp.syncfree: optimizers whose step under a GradScaler reads no value."""

from surestep.torch_xla import _later
from surestep.torch_xla.amp.syncfree.adam import Adam
from surestep.torch_xla.amp.syncfree.adamw import AdamW
from surestep.torch_xla.amp.syncfree.grad_scaler import GradScaler
from surestep.torch_xla.amp.syncfree.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "GradScaler"]

__getattr__ = _later.getter("torch_xla.amp.syncfree")
