"""Whatever torch_xla lowers runs on the device here: lowered too, handled, or decomposed into what is.

torch_xla.txt has the ATen operations that its last releases name for their backend.
"""

import pathlib

import pytest
import torch
import torch.nn.functional as F
from ways import overload, way

NAMES = pathlib.Path(__file__).with_name("torch_xla.txt").read_text().split()
# What PyTorch only calls in C++ backends, each with what stands in its place here.
INTERNAL = {
    "_copy_from": "copy_",
    "_copy_from_and_resize": "copy_",
    "convolution_backward_overrideable": "convolution_backward",
    "convolution_overrideable": "convolution",
}
x, square = torch.linspace(-1, 1, 12).reshape(3, 4), torch.eye(3) + torch.arange(9.0).reshape(3, 3) / 10
image = torch.arange(32.0).reshape(1, 2, 4, 4)
# One call for each that is decomposed: what it is decomposed into has to be lowered.
DECOMPOSED = {
    "__ilshift__.Scalar": lambda: move(torch.arange(4)).__ilshift__(1),
    "__ilshift__.Tensor": lambda: move(torch.arange(4)).__ilshift__(move(torch.arange(4))),
    "__irshift__.Scalar": lambda: move(torch.arange(4)).__irshift__(1),
    "__irshift__.Tensor": lambda: move(torch.arange(4)).__irshift__(move(torch.arange(4))),
    "_to_cpu": lambda: torch.ops.aten._to_cpu([torch.ones(2)]),  # takes tensors to the host: that is what it is for
    "cross": lambda: torch.cross(move(square), move(square), dim=1),
    "diag": lambda: torch.diag(move(square)),
    "einsum": lambda: torch.einsum("ij,kj->ik", move(x), move(x)),
    "inverse": lambda: torch.inverse(move(square)),
    "kl_div": lambda: F.kl_div(move(x), move(x.exp()), reduction="sum"),
    "logdet": lambda: torch.logdet(move(square)),
    "max_pool2d": lambda: F.max_pool2d(move(image), 2),
    "max_pool3d": lambda: F.max_pool3d(move(image), 2),
    "qr": lambda: torch.qr(move(x)),
    "selu": lambda: torch.selu(move(x)),
    "selu_": lambda: torch.selu_(move(x)),
    "std": lambda: torch.std(move(x), False),
    "std.dim": lambda: torch.std(move(x), 1, False),
    "svd": lambda: torch.svd(move(x)),
}


def move(tensor):
    return tensor.to("xla")


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_the_device(name):
    assert way(overload(INTERNAL.get(name, name))) != "host"


def test_what_is_decomposed_is_called_below():
    assert {name for name in NAMES if way(overload(INTERNAL.get(name, name))) == "decomposed"} == DECOMPOSED.keys()


@pytest.mark.parametrize("name", DECOMPOSED)
@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*_linalg_check_errors", "ignore:.*cuts the step")
def test_what_it_is_decomposed_into_does_too(metrics, name):
    DECOMPOSED[name]()
    assert not {place.what for place in metrics().fallbacks} - {"aten._linalg_check_errors.default"}
