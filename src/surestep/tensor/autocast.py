"""``torch.autocast("xla", dtype=...)``: PyTorch has a dispatch key for it with nothing behind it. Here are the rules of its CUDA autocast.

What multiplies matrices runs in the lower precision; what sums many terms or has steep slopes runs in float32; what takes several
operands of different precision runs in the widest; everything else falls through. Casts of the same weight in one program are one cast,
since XLA finds equal expressions: there is no cache to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_aten = torch.ops.aten

LOWER = [
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "conv_tbc",
    "_convolution",
    "convolution",
    "gru_cell",
    "lstm_cell",
    "rnn_relu_cell",
    "rnn_tanh_cell",
    "linear",
    "matmul",
    "linalg_matmul",
    "mm",
    "mv",
    "prelu",
    "einsum",
    "scaled_dot_product_attention",
    "linalg_vecdot",
]
FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "cosine_embedding_loss",
    "cdist",
    "cosine_similarity",
    "cross_entropy_loss",
    "cumprod",
    "cumsum",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "group_norm",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "native_layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax.int",
    "logsumexp",
    "margin_ranking_loss",
    "mse_loss",
    "multilabel_margin_loss",
    "multi_margin_loss",
    "nll_loss",
    "nll_loss2d",
    "nll_loss_nd",
    "norm",
    "pdist",
    "poisson_nll_loss",
    "pow",
    "prod",
    "reciprocal",
    "renorm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "softmax.int",
    "softplus",
    "sum",
    "tan",
    "triplet_margin_loss",
    "binary_cross_entropy_with_logits",
    "frobenius_norm",
    "nuclear_norm",
    "ctc_loss",
]
WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "cat",
    "stack",
]
_parsed: Any = torch._C._parse_dispatch_key("AutocastXLA")  # the enum in Python lacks it; the stub's None is for unknown names
_KEY = torch._C.DispatchKeySet(_parsed)


def register() -> list[Any]:
    """Registers the rules; the libraries returned must be kept alive."""
    everything = torch.library.Library("_", "IMPL", "AutocastXLA")
    everything.fallback(torch.library.fallthrough_kernel)
    aten = torch.library.Library("aten", "IMPL", "AutocastXLA")
    for names, rule in ((LOWER, _to_lower), (FLOAT32, _to_float32), (WIDEST, _to_widest)):
        for overload in _overloads(names):
            aten.impl(overload, _kernel(overload, rule))
    aten.impl(_aten.binary_cross_entropy.default, _refuse_binary_cross_entropy)
    return [everything, aten]


def _overloads(names: list[str]) -> list[torch._ops.OpOverload]:
    """All functional overloads of each operation, or the one that is named."""
    found = []
    for name in names:
        packet, _, only = name.partition(".")
        operation = getattr(_aten, packet, None)
        for overload in operation.overloads() if operation is not None else ():
            candidate = getattr(operation, overload)
            mutable = candidate._schema.is_mutable or any("Dimname" in str(a.type) for a in candidate._schema.arguments)
            if not mutable and (not only or overload == only):
                found.append(candidate)
    return found


def _kernel(overload: torch._ops.OpOverload, rule: Callable[[tuple, dict], tuple[tuple, dict]]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            args, kwargs = rule(args, kwargs)
            return overload(*args, **kwargs)

    return kernel


def _eligible(value: Any) -> bool:
    """Autocast leaves integers, complex numbers and float64 alone."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64 and value.device.type == "xla"


def _cast(arguments: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _eligible(value) and value.dtype is not dtype else value, arguments)


def _to_lower(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _cast((args, kwargs), torch.get_autocast_dtype("xla"))


def _to_float32(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _cast((args, kwargs), torch.float32)


def _to_widest(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    dtypes = {value.dtype for value in tree_leaves((args, kwargs)) if _eligible(value)}
    return _cast((args, kwargs), torch.float32) if len(dtypes) > 1 else (args, kwargs)


def _refuse_binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, combine the two layers using "
        "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss. binary_cross_entropy_with_logits and "
        "BCEWithLogits are safe to autocast."
    )
