"""torch_xla.amp.syncfree.adam"""

import torch

from surestep.torch_xla.amp.syncfree._optional import OptionalStep

__all__ = ["Adam"]


class Adam(OptionalStep, torch.optim.Adam):
    """``torch.optim.Adam``, with a step that takes ``found_inf``."""
