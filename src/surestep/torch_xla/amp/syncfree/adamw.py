"""torch_xla.amp.syncfree.adamw"""

import torch

from surestep.torch_xla.amp.syncfree._optional import OptionalStep

__all__ = ["AdamW"]


class AdamW(OptionalStep, torch.optim.AdamW):
    """``torch.optim.AdamW``, with a step that takes ``found_inf``."""
