"""torch_xla.experimental.custom_kernel: attention and grouped matrix products by torch_xla's names, and Pallas kernels on tensors.

What torch_xla calls a kernel of its own for, XLA compiles here from the operation, on any device, with gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from surestep.execute import dtypes
from surestep.tensor.calling import call_jax
from surestep.torch_xla import _later
from surestep.torch_xla._internal.jax_workarounds import jax_import_guard, requires_jax

__all__ = [
    "GMM",
    "FlashAttention",
    "convert_torch_dtype_to_jax",
    "flash_attention",
    "gmm",
    "gmm_backward",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "requires_jax",
    "tgmm",
    "to_jax_shape_dtype_struct",
]


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """Attention, ``softmax(sm_scale * q k^T + ab) v``. Unlike ``scaled_dot_product_attention`` it scales by nothing of itself.

    Args:
        q: Of shape (batch, heads, queries, size).
        k: Of shape (batch, heads, keys, size).
        v: As ``k``.
        causal: A query sees no key that comes after it.
        q_segment_ids: Of shape (batch, queries), integers: a query sees keys of its own segment only.
        kv_segment_ids: Of shape (batch, keys).
        sm_scale: What the products are multiplied by.
        ab: What is added to them, of shape (batch, heads, queries, keys).
        partition_spec: Accepted as torch_xla has it: how ``q``, ``k`` and ``v`` lie over the devices decides how this is computed.
        mesh: As ``partition_spec``.

    Returns:
        Of ``q``'s shape. A query that sees no key gets the mean of all values, as in torch_xla.

    Raises:
        ValueError: The shapes don't go together, or one of the segments' arguments is missing.
    """
    _check_shapes(q, k, v, q_segment_ids, kv_segment_ids, ab)
    if ab is None and q_segment_ids is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    hidden = torch.zeros((), dtype=torch.bool, device=q.device)
    if q_segment_ids is not None and kv_segment_ids is not None:
        hidden = (q_segment_ids.unsqueeze(-1) != kv_segment_ids.unsqueeze(-2)).unsqueeze(1)
    if causal:
        hidden = hidden | torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    # as the kernel does: finite, so that a query without keys has a result
    bias = torch.zeros((), dtype=q.dtype, device=q.device) if ab is None else ab.to(q.dtype)
    mask = torch.where(hidden, _HIDDEN * torch.finfo(q.dtype).max, bias)
    return F.scaled_dot_product_attention(q, k, v, mask.expand(*q.shape[:3], k.shape[2]), scale=sm_scale)


_HIDDEN = -0.7  # times the largest number: two of them can be added


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_segment_ids: Any, kv_segment_ids: Any, ab: Any) -> None:
    if q.dim() != 4 or k.dim() != 4 or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or k.shape != v.shape:
        raise ValueError(
            f"flash_attention takes q of shape (batch, heads, queries, size), k and v of shape (batch, heads, keys, size), and was given "
            f"{_shapes(q, k, v)}"
        )
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash_attention takes both q_segment_ids and kv_segment_ids, or neither")
    if q_segment_ids is not None:
        wanted = (q.shape[0], q.shape[2]), (q.shape[0], k.shape[2])
        if (q_segment_ids.shape, kv_segment_ids.shape) != wanted:
            raise ValueError(
                f"flash_attention: q_segment_ids and kv_segment_ids must have the shapes {wanted[0]} and {wanted[1]}, and have "
                f"{_shapes(q_segment_ids, kv_segment_ids)}"
            )
    if ab is not None and ab.shape != (*q.shape[:3], k.shape[2]):
        raise ValueError(f"flash_attention: ab must have the shape {(*q.shape[:3], k.shape[2])}, and has {tuple(ab.shape)}")


def _shapes(*tensors: torch.Tensor) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


class FlashAttention:
    """``flash_attention`` by the name of torch_xla's autograd function: ``FlashAttention.apply(...)``, its arguments in order."""

    @staticmethod
    def apply(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        q_segment_ids: torch.Tensor | None = None,
        kv_segment_ids: torch.Tensor | None = None,
        sm_scale: float = 1.0,
        ab: torch.Tensor | None = None,
        partition_spec: Any = None,
        mesh: Any = None,
    ) -> torch.Tensor:
        """As ``flash_attention``."""
        return flash_attention(q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab=ab, partition_spec=partition_spec, mesh=mesh)


def gmm(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: tuple[int, int, int] | list[int] = (512, 512, 512)
) -> torch.Tensor:
    """Groups of rows, each by a matrix of its own: the first ``group_sizes[0]`` rows of ``lhs`` by ``rhs[0]``, and so on.

    Args:
        lhs: Of shape (m, k).
        rhs: Of shape (groups, k, n).
        group_sizes: Of shape (groups,), int32; rows after their sum give zeros.
        tiling: Accepted as torch_xla has it; tiles are XLA's business here.

    Returns:
        Of shape (m, n), in ``lhs``'s dtype.
    """
    return call_jax(_gmm, (lhs, rhs, group_sizes))


def tgmm(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: tuple[int, int, int] | list[int] = (512, 512, 512)
) -> torch.Tensor:
    """Groups of columns by groups of rows: ``lhs[:, group] @ rhs[group]`` for each, stacked. It is ``gmm``'s gradient by ``rhs``.

    Args:
        lhs: Of shape (k, m).
        rhs: Of shape (m, n).
        group_sizes: Of shape (groups,), int32.
        tiling: As ``gmm``'s.

    Returns:
        Of shape (groups, k, n), in ``lhs``'s dtype.
    """
    return call_jax(_tgmm, (lhs, rhs, group_sizes))


def _gmm(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    from jax import lax

    return lax.ragged_dot(lhs, rhs, group_sizes, precision=lax.Precision.HIGHEST).astype(lhs.dtype)


def _tgmm(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
    from jax import lax

    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)), ((), ())), lhs_ragged_dimensions=(1,), rhs_group_dimensions=()
    )
    return lax.ragged_dot_general(lhs, rhs, group_sizes, numbers, precision=lax.Precision.HIGHEST).astype(lhs.dtype)


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] | list[int] = (512, 512, 512),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of ``gmm`` by ``lhs`` and ``rhs``, of the gradient of what it gave."""
    return gmm(grad, rhs.transpose(-1, -2), group_sizes, tiling), tgmm(lhs.t(), grad, group_sizes, tiling)


class GMM:
    """``gmm`` by the name of torch_xla's autograd function: ``GMM.apply(...)``. Both have gradients here."""

    apply = staticmethod(gmm)


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., list[tuple[Any, torch.dtype]]]
) -> Callable[..., Any]:
    """A JAX function, which mostly calls a Pallas kernel, as a function of tensors.

    Args:
        kernel: Takes and gives JAX arrays. What a device has no Pallas for needs ``pallas_call(..., interpret=True)``, as in JAX.
        output_shape_dtype_fn: Called with the arguments, gives the results' shapes and dtypes, in a list.

    Returns:
        A function of the kernel's arguments: tensors on the xla device, and others, whether ``static_argnums`` and ``static_argnames`` name
        them or not. It gives a tensor, or a tuple of several, and raises ``ValueError`` where they aren't as was said.
    """

    def called(*args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any) -> Any:
        said = [(tuple(shape), dtype) for shape, dtype in output_shape_dtype_fn(*args)]
        result = call_jax(kernel, args, kwargs)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        found = [(tuple(each.shape), each.dtype) for each in results]
        if found != said:
            raise ValueError(f"the kernel gives {found}, and output_shape_dtype_fn says {said}")
        return results[0] if len(results) == 1 else tuple(results)

    return called


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """JAX's name of a dtype."""
    return dtypes.to_jax(dtype).type


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> Any:
    """A tensor's shape and dtype, as JAX's tracing takes them."""
    import jax

    return jax.ShapeDtypeStruct(tuple(tensor.shape), dtypes.to_jax(tensor.dtype))


__getattr__ = _later.getter("torch_xla.experimental.custom_kernel")
