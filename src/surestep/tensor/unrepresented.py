"""The kinds of tensors that the xla device can't have, since XLA's arrays are dense: sparse, quantized, mkldnn and nested ones. Each error
says what to write instead.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from surestep.execute import dtypes

_INSTEAD = {
    "sparse": "Use dense tensors: .to_dense(). If it is the gradient of an embedding, make that with sparse=False",
    "quantized": "Use .dequantize(); for fewer bits, .to(torch.bfloat16) or torch.autocast('xla')",
    "mkldnn": "Use plain tensors: .to_dense(). XLA chooses how they lie by itself",
    "nested": "Use a padded tensor and a mask: torch.nested.to_padded_tensor(x, 0.0), torch.nn.utils.rnn.pad_sequence",
}
# Operations on such tensors are told by their names. (What is quantized for show, `fake_quantize`, is dense.)
_IN_NAMES = {"sparse": "sparse", "(?<!fake_)quantize": "quantized", "mkldnn": "mkldnn", "nested": "nested"}


def error(kind: str, where: str) -> RuntimeError:
    """What is told of one that was asked for."""
    return RuntimeError(
        f"{where}: the xla device has no {kind} tensors, since XLA's arrays are dense. {_INSTEAD[kind]}; or do this on the CPU."
    )


def check(tensor: torch.Tensor) -> None:
    """Raises if the copy of a CPU tensor can't be on the device."""
    if tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else _kind_of(tensor.layout)
        raise error(kind, "a copy to the device")


def check_options(layout: torch.layout | None, dtype: torch.dtype) -> None:
    """Raises if a new tensor can't be on the device."""
    if layout is not None and layout is not torch.strided:
        raise error(_kind_of(layout), f"layout={layout}")
    dtypes.to_jax(dtype)


def refusal(func: torch._ops.OpOverload) -> Any:
    """The handler of an operation on such tensors; None for all others."""
    kind = next((kind for word, kind in _IN_NAMES.items() if re.search(word, func.name())), None)
    if kind is None:
        return None

    def refuse(args: tuple, kwargs: dict) -> Any:
        raise error(kind, str(func))

    return refuse


def _kind_of(layout: torch.layout) -> str:
    return "mkldnn" if "mkldnn" in str(layout) else "nested" if layout is torch.jagged else "sparse"
