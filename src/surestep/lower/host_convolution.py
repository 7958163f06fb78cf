"""Convolutions by PyTorch's CPU kernels (oneDNN's), and where those are faster than XLA's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from surestep.execute.host_kernels import kernel

aten = torch.ops.aten


_LEAST = 50_000_000  # multiplications and additions; below, what a call costs shows


def faster(x: Any, weight: Any, result: Any, options: Any, gradients: bool) -> bool:
    """Whether PyTorch's kernel is called for a convolution of such arrays with such a result, or for its gradients.

    Measured as processor time on one thread (AVX-512), PyTorch's to XLA's, forward and backward. 3 x 3 with 302 million operations: 0.7 and
    0.6 for 16 channels, 1.0 and 0.8 for 64, 1.1 and 0.9 for 128 (on two threads 0.7 and 0.5 of the time that passes); with 57 million and 3
    channels: 0.5 and 0.6; with 38 million: 1.2 to 1.5 and 0.7 to 1.3. Four and eight groups: 0.6 and 0.5; one channel a group: 3.1 and 0.7.
    Transposed, stride 2: 0.9 and 0.04. Three dimensions: 0.12 and 0.07. One dimension: 1.0 to 1.2 and 0.9; kernels of one element: 0.9 to
    1.2 and 0.5. float64: between 0.1 and 3.

    On several threads XLA runs other parts of the program beside its own convolutions, but not beside PyTorch's, and a whole residual
    network gained nothing: 1.4 times eager's time on two threads, 1.2 with XLA's. So there it is the kinds with the large differences only
    (forward and backward together 0.1).
    """
    taps = weight.shape[2:]
    operations = 2 * math.prod((x if options.transposed else result).shape) * math.prod(weight.shape[1:])
    depthwise = options.groups > 1 and weight.shape[1] == 1
    windows = len(taps) > 1 and math.prod(taps) > 1
    if torch.get_num_threads() > 1 and len(taps) < 3 and not options.transposed:
        return False
    return x.dtype == np.float32 and operations >= _LEAST and not depthwise and (gradients or windows)


@kernel
def convolution(inputs: list[torch.Tensor], outputs: list[torch.Tensor], *options: Any) -> None:
    """(x, weight) -> (result); the options are those of ``aten.convolution`` behind its bias."""
    aten.convolution.out(*inputs, None, *options, out=outputs[0])


@kernel
def convolution_backward(inputs: list[torch.Tensor], outputs: list[torch.Tensor], mask: list[bool], *options: Any) -> None:
    """(grad, x, weight) -> the gradients of x and weight that are masked in; the options are as those of ``convolution``."""
    found = aten.convolution_backward.default(*inputs, None, *options, [*mask, False])
    for output, gradient in zip(outputs, (one for one in found if one is not None), strict=True):
        output.copy_(gradient)
