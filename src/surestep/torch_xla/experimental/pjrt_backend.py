"""torch_xla.experimental.pjrt_backend: importing it makes ``init_method="pjrt://"`` known, an old name of ``xla://``."""

from surestep.torch_xla.distributed import xla_backend

__all__ = ["xla_backend"]
