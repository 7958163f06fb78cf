"""torch_xla.experimental.eager"""

from surestep.loop.eager import eager_mode, eager_mode_context, is_eager_mode
from surestep.replay.compiled import compile

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]
