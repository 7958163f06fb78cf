"""torch_xla.core.xla_builder: JAX functions on tensors. XLA's operations are JAX's, rather than objects of their own."""

from surestep.tensor.calling import call_jax
from surestep.torch_xla import _later

__all__ = ["call_jax"]

__getattr__ = _later.getter("torch_xla.core.xla_builder")
