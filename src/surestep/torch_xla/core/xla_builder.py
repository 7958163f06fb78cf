"""torch_xla.core.xla_builder (`xb`): JAX functions on tensors, and XLA's operations as objects, each a JAX array while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from surestep.execute import dtypes
from surestep.tensor.calling import call_jax
from surestep.torch_xla import _later

__all__ = ["Op", "Type", "call_jax"]


class Type:
    """Dtypes by XLA's names."""

    F32, F64, BF16, F16 = "f32", "f64", "bf16", "f16"
    U8, S8, U16, S16, U32, S32, U64, S64 = "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"
    C64, C128, PRED = "c64", "c128", "pred"


_TORCH = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
    "s8": torch.int8,
    "u16": torch.uint16,
    "s16": torch.int16,
    "u32": torch.uint32,
    "s32": torch.int32,
    "u64": torch.uint64,
    "s64": torch.int64,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "pred": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


class Shape:
    """The sizes and the dtype of an ``Op``; of a tuple, its parts'."""

    def __init__(self, value: Any):
        self._value = value

    def is_tuple(self) -> bool:
        """Whether it is a tuple's."""
        return isinstance(self._value, tuple)

    def tuple_size(self) -> int:
        """How many parts it has."""
        return len(self._value)

    def tuple_shape(self, index: int) -> Shape:
        """A part's."""
        return Shape(self._value[index])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes."""
        return self._value.shape

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self._value.shape)

    @property
    def dtype(self) -> str:
        """XLA's name of the dtype."""
        return _NAMES[dtypes.to_torch(self._value.dtype)]


def _elementwise(name: str) -> Any:
    """A method that is one of ``jax.lax``'s functions; a scalar operand is broadcast."""

    def method(self: Op, *others: Op) -> Op:
        import jax.numpy as jnp
        from jax import lax

        return Op(getattr(lax, name)(*jnp.broadcast_arrays(self.value, *(other.value for other in others))))

    return method


class Op:
    """One value of a function that is given to ``xla_op_registry.register``: a JAX array, or a tuple of them.

    Of XLA's operations these are there; ``value`` is the array itself, for ``jax.numpy`` and ``jax.lax``, which have all of them.
    """

    __hash__ = None  # type: ignore[bad-override] (as with arrays, == is an operation)

    def __init__(self, value: Any):
        self.value = value

    __add__, __sub__, __mul__, __truediv__ = map(_elementwise, ("add", "sub", "mul", "div"))
    __pow__, __mod__, __neg__ = map(_elementwise, ("pow", "rem", "neg"))
    __and__, __or__, __xor__, __invert__ = map(_elementwise, ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"))
    __lshift__, __rshift__ = map(_elementwise, ("shift_left", "shift_right_arithmetic"))
    __eq__, __ne__, __le__, __lt__, __ge__, __gt__ = map(_elementwise, ("eq", "ne", "le", "lt", "ge", "gt"))
    acos, asin, atan, atan2, ceil, clz = map(_elementwise, ("acos", "asin", "atan", "atan2", "ceil", "clz"))
    conj, cos, cosh, erf, erfc, erfinf = map(_elementwise, ("conj", "cos", "cosh", "erf", "erfc", "erf_inv"))
    exp, expm1, floor, imag, log, log1p = map(_elementwise, ("exp", "expm1", "floor", "imag", "log", "log1p"))
    max, min, real, rsqrt, sin, sinh = map(_elementwise, ("max", "min", "real", "rsqrt", "sin", "sinh"))
    sqrt, tan, tanh, select = map(_elementwise, ("sqrt", "tan", "tanh", "select"))

    def __matmul__(self, other: Op) -> Op:
        from jax import lax

        return Op(lax.dot(self.value, other.value, precision=lax.Precision.HIGHEST))

    def shape(self) -> Shape:
        """Its sizes and dtype."""
        return Shape(self.value)

    def builder(self) -> None:
        """What ``Op.scalar`` and the like take first: there is nothing to it here."""

    def clamp(self, min_value: Op, max_value: Op) -> Op:
        """No less and no more than two others."""
        return self.max(min_value).min(max_value)

    def cast(self, to_type: str) -> Op:
        """In another dtype."""
        return Op(self.value.astype(_jax(to_type)))

    def bitcast(self, to_type: str) -> Op:
        """Its bits as another dtype."""
        return Op(self.value.view(_jax(to_type)))

    def reshape(self, sizes: Sequence[int], dimensions: Sequence[int] | None = None, inferred_dimension: int | None = None) -> Op:
        """In other sizes, with its dimensions in another order first."""
        return Op((self.value if dimensions is None else self.value.transpose(dimensions)).reshape(sizes))

    def transpose(self, permutation: Sequence[int]) -> Op:
        """With its dimensions in another order."""
        return Op(self.value.transpose(permutation))

    def broadcast(self, sizes: Sequence[int]) -> Op:
        """With more dimensions before its own."""
        import jax.numpy as jnp

        return Op(jnp.broadcast_to(self.value, (*sizes, *self.value.shape)))

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> Op:
        """In larger sizes; its dimensions are those of them."""
        from jax import lax

        return Op(lax.broadcast_in_dim(self.value, tuple(sizes), tuple(dimensions)))

    def slice(self, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> Op:
        """A part of it."""
        from jax import lax

        return Op(lax.slice(self.value, start_indices, limit_indices, strides))

    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Op:
        """A part along one dimension."""
        from jax import lax

        return Op(lax.slice_in_dim(self.value, start_index, limit_index, stride, dimno))

    def dynamic_slice(self, start_indices: Sequence[Op], slice_sizes: Sequence[int]) -> Op:
        """A part that begins where other values say."""
        from jax import lax

        return Op(lax.dynamic_slice(self.value, [each.value for each in start_indices], slice_sizes))

    def dynamic_update_slice(self, update: Op, start_indices: Sequence[Op]) -> Op:
        """With a part replaced."""
        from jax import lax

        return Op(lax.dynamic_update_slice(self.value, update.value, [each.value for each in start_indices]))

    def rev(self, dimensions: Sequence[int]) -> Op:
        """Backwards along dimensions."""
        from jax import lax

        return Op(lax.rev(self.value, dimensions))

    def reduce(self, init_value: Op, computation: Callable[[Op, Op], Op], dimensions: Sequence[int]) -> Op:
        """Reduced over dimensions by a function of two values."""
        from jax import lax

        return Op(lax.reduce(self.value, init_value.value, lambda x, y: computation(Op(x), Op(y)).value, tuple(dimensions)))

    def reduce_all(self, init_value: Op, computation: Callable[[Op, Op], Op]) -> Op:
        """Reduced over all dimensions."""
        return self.reduce(init_value, computation, range(self.value.ndim))

    def triangualr_solve(
        self, b: Op, left_side: bool = False, lower: bool = False, unit_diagonal: bool = False, transpose_a: bool = False
    ) -> Op:
        """What times this triangular matrix is ``b`` (torch_xla's spelling)."""
        from jax import lax

        options = {"left_side": left_side, "lower": lower, "unit_diagonal": unit_diagonal, "transpose_a": transpose_a}
        return Op(lax.linalg.triangular_solve(self.value, b.value, **options))

    def mkconditional(self, ops: Sequence[Op], true_fn: Callable[..., Any], false_fn: Callable[..., Any]) -> Op:
        """What one of two functions gives for the operands."""
        from jax import lax

        return Op(lax.cond(self.value, _of_values(true_fn), _of_values(false_fn), *(op.value for op in ops)))

    @classmethod
    def mkwhile(cls, ops: Sequence[Op], condition_fn: Callable[..., Op], body_fn: Callable[..., Any]) -> Op:
        """The operands after as many rounds as a condition on them holds."""
        from jax import lax

        condition, body = _of_values(condition_fn), _of_values(body_fn)
        return cls(lax.while_loop(lambda values: condition(*values), lambda values: body(*values), tuple(op.value for op in ops)))

    def get_tuple_element(self, index: int) -> Op:
        """A part of a tuple."""
        return Op(self.value[index])

    def scalar_like(self, value: float) -> Op:
        """A number in its sizes and dtype."""
        import jax.numpy as jnp

        return Op(jnp.full_like(self.value, value))

    def zeros_like(self) -> Op:
        """Zeros in its sizes and dtype."""
        return self.scalar_like(0)

    def ones_like(self) -> Op:
        """Ones in its sizes and dtype."""
        return self.scalar_like(1)

    @classmethod
    def tuple(cls, ops: Sequence[Op], builder: None = None) -> Op:
        """Several as one."""
        return cls(tuple(op.value for op in ops))

    @classmethod
    def concat_in_dim(cls, ops: Sequence[Op], dimension: int, builder: None = None) -> Op:
        """One after the other along a dimension."""
        from jax import lax

        return cls(lax.concatenate([op.value for op in ops], dimension))

    @classmethod
    def scalar(cls, builder: None, value: float, dtype: str | None = None) -> Op:
        """A number; of float32 unless another dtype is given."""
        import jax.numpy as jnp

        return cls(jnp.asarray(value, _jax(dtype or Type.F32)))

    @classmethod
    def zero(cls, builder: None, dtype: str | None = None) -> Op:
        """0"""
        return cls.scalar(builder, 0, dtype)

    @classmethod
    def one(cls, builder: None, dtype: str | None = None) -> Op:
        """1"""
        return cls.scalar(builder, 1, dtype)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"torch_xla.core.xla_builder.Op has no {name!r} in surestep. Write it in JAX: `.value` is the array, and Op(array) an Op"
        )


def _jax(name: str) -> Any:
    return dtypes.to_jax(_TORCH[name])


def values(result: Any) -> Any:
    """The array of an ``Op``, or the tuple of arrays of a tuple or of several."""
    return result.value if isinstance(result, Op) else tuple(op.value for op in result)


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: values(function(*map(Op, given)))


__getattr__ = _later.getter("torch_xla.core.xla_builder")
