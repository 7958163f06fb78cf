"""torch_xla.experimental: nothing of it is there yet, and each name says so."""

from surestep.torch_xla import _later

__getattr__ = _later.getter("torch_xla.experimental")
