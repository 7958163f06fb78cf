"""torch_xla.experimental: eager mode; each name that is not there yet says so."""

from surestep.torch_xla import _later
from surestep.torch_xla.experimental.eager import compile, eager_mode, eager_mode_context, is_eager_mode

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = _later.getter("torch_xla.experimental")
