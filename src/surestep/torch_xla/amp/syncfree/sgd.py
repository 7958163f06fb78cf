"""torch_xla.amp.syncfree.sgd"""

import torch

from surestep.torch_xla.amp.syncfree._optional import OptionalStep

__all__ = ["SGD"]


class SGD(OptionalStep, torch.optim.SGD):
    """``torch.optim.SGD``, with a step that takes ``found_inf``."""
