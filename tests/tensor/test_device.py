"""The device as PyTorch users expect it."""

import pytest
import torch
from torch import nn

import surestep
from both import same


def test_every_factory_takes_the_device():
    made = [
        torch.empty(2, device="xla"),
        torch.zeros(2, device="xla"),
        torch.ones(2, device="xla"),
        torch.full((2,), 3.0, device="xla"),
        torch.rand(2, device="xla"),
        torch.randn(2, device="xla"),
        torch.randint(0, 9, (2,), device="xla"),
        torch.arange(2, device="xla"),
        torch.eye(2, device="xla"),
        torch.tensor([1, 2], device="xla"),
        torch.linspace(0, 1, 2, device="xla"),
        torch.zeros_like(torch.ones(2), device="xla"),
        torch.ones(2).new_ones(2, device="xla"),
        torch.randperm(2, device="xla"),
        torch.as_tensor([1.0], device="xla"),
        torch.scalar_tensor(1.0, device="xla"),
        torch.empty_strided((2,), (1,), device="xla"),
        torch.logspace(0, 1, 2, device="xla"),
        torch.tril_indices(2, 2, device="xla"),
        torch.hann_window(4, device="xla"),
        torch.complex(torch.ones(2, device="xla"), torch.ones(2, device="xla")),
    ]
    assert {str(t.device) for t in made} == {"xla:0"}


def test_default_device_and_context():
    torch.set_default_device("xla")
    try:
        assert nn.Linear(2, 2)(torch.ones(1, 2)).device.type == "xla"
    finally:
        torch.set_default_device(None)
    with torch.device("xla"):
        assert torch.ones(2).device.type == "xla"
    assert torch.ones(2).device.type == "cpu"


def test_the_device_module():
    assert torch.xla.is_available() and torch.xla.device_count() == 1 and torch.xla.current_device() == 0
    torch.xla.synchronize()
    kept = torch.ones(1000).to("xla")
    assert torch.xla.memory_allocated() >= kept.nbytes == 4000
    assert torch.get_device_module("xla") is torch.xla
    assert torch.xla.get_device_name() == torch.xla.get_device_name("xla:0") == "cpu"


def test_a_peak_that_nobody_counts_is_an_error():
    with pytest.raises(RuntimeError, match=r"max_memory_allocated: JAX counts no peak for cpu devices. torch.xla.memory_allocated\(\)"):
        torch.xla.max_memory_allocated()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: torch.tensor([1.5, 2.0], device="xla"), "tensor([1.5000, 2.0000], device='xla:0')"),
        (lambda: torch.tensor(3, device="xla"), "tensor(3, device='xla:0')"),
        (lambda: torch.ones(2, dtype=torch.int32, device="xla"), "tensor([1, 1], device='xla:0', dtype=torch.int32)"),
        (lambda: torch.ones(1, device="xla", requires_grad=True), "tensor([1.], device='xla:0', requires_grad=True)"),
        (lambda: torch.ones(1, device="xla", requires_grad=True) * 2, "tensor([2.], device='xla:0', grad_fn=<MulBackward0>)"),
        (lambda: nn.Parameter(torch.ones(1, device="xla")), "Parameter containing:\ntensor([1.], device='xla:0', requires_grad=True)"),
        (lambda: torch.ones(0, 3, device="xla"), "tensor([], device='xla:0', size=(0, 3))"),
    ],
)
def test_printing(tensor, text):
    assert repr(tensor()) == str(tensor()) == text


def test_printing_is_a_counted_boundary(metrics):
    repr(torch.ones(2, device="xla") * 2)
    assert metrics().implicit.total() == 1


def test_inference_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).eval()

    def infer(x):
        with torch.inference_mode():
            y = model.to(x.device)(x)
            y.add_(1).view(-1)[0] = 3
            return y.clone()

    torch.manual_seed(0)
    same(infer, torch.randn(2, 4))


@pytest.mark.parametrize("view", [lambda t: t[None], lambda t: t[0], lambda t: t.view(3, 1), lambda t: t.detach()])
def test_a_view_in_inference_mode_is_what_its_base_is(view):
    base = torch.ones(3, device="xla")
    with torch.inference_mode():
        assert not view(base).is_inference()
        assert view(torch.ones(3, device="xla")).is_inference()


@pytest.mark.parametrize("kind", [1, 1.0, True])
def test_constants_of_equal_value_are_kept_apart(kind):
    expected = torch.ones(2, dtype=torch.int64) * kind
    for other in (1, 1.0, True, kind):
        result = torch.ones(2, dtype=torch.int64, device="xla") * other
        assert result.dtype is (torch.ones(2, dtype=torch.int64) * other).dtype
    assert (torch.ones(2, dtype=torch.int64, device="xla") * kind).dtype is expected.dtype


def test_signed_zero_and_nan_are_constants_of_their_own():
    one = torch.ones((), device="xla", dtype=torch.float64)
    assert [(one / z).item() for z in (0.0, -0.0, 0.0)] == [float("inf"), float("-inf"), float("inf")]
    assert (one * float("nan")).isnan().item() and (one * 2).item() == 2


def test_dtype_promotion_with_0_dim_cpu_tensors():
    same(lambda a: a + torch.tensor(2.5, dtype=torch.float64), torch.ones(2))
    same(lambda a: a * torch.tensor(3), torch.ones(2, dtype=torch.int32))
    same(lambda a: torch.where(a > 0, torch.tensor(1.0), a), torch.tensor([-1.0, 1.0]))


LIKE = {
    "ones_like": lambda x, device: torch.ones_like(x, device=device),
    "zeros_like": lambda x, device: torch.zeros_like(x, device=device),
    "full_like": lambda x, device: torch.full_like(x, 3, device=device),
    "rand_like": lambda x, device: torch.rand_like(x, device=device),
    "empty_like": lambda x, device: torch.empty_like(x, device=device),
    "new_ones": lambda x, device: x.new_ones(3, 2, device=device),
    "new_zeros": lambda x, device: x.new_zeros(3, 2, device=device),
    "new_full": lambda x, device: x.new_full((3, 2), 3, device=device),
    "new_empty": lambda x, device: x.new_empty((3, 2), device=device),
    "new_tensor": lambda x, device: x.new_tensor([[1.0, 2.0]] * 3, device=device),
}


@pytest.mark.parametrize("name", LIKE)
def test_a_tensor_like_another_is_where_it_was_asked_for(name):
    x = torch.ones(2, 3).to("xla").t()
    for device in ("cpu", "meta", "xla:0"):
        made, wanted = LIKE[name](x, device), LIKE[name](torch.ones(2, 3).t(), device)
        assert made.device == torch.device(device) and made.shape == wanted.shape and made.stride() == wanted.stride()


def in_context(context):
    with context:
        return torch.ones(1)


NOWHERE = "xla:7"
ASKED = {
    "to": lambda: torch.ones(1).to(NOWHERE),
    "to, from xla": lambda: torch.ones(1, device="xla").to(NOWHERE),
    "factory": lambda: torch.ones(1, device=NOWHERE),
    "random": lambda: torch.randperm(3, device=NOWHERE),
    "a constant": lambda: torch.hamming_window(3, device=NOWHERE),
    "with torch.device": lambda: in_context(torch.device(NOWHERE)),
    "module": lambda: nn.Linear(2, 2).to(NOWHERE),
    "set_device": lambda: torch.xla.set_device(7),
    "set_device, negative": lambda: torch.xla.set_device(-1),
    "set_device, by name": lambda: torch.xla.set_device(NOWHERE),
    "with torch.xla.device": lambda: in_context(torch.xla.device(7)),
    "get_rng_state": lambda: torch.xla.get_rng_state(NOWHERE),
    "set_rng_state": lambda: torch.xla.set_rng_state(torch.xla.get_rng_state(), 7),
    "fork_rng": lambda: in_context(torch.random.fork_rng([7], device_type="xla")),
    "manual_seed": lambda: surestep.manual_seed(1, NOWHERE),
    "Generator": lambda: surestep.Generator(NOWHERE),
    "memory_stats": lambda: torch.xla.memory_stats(7),
    "memory_stats, negative": lambda: torch.xla.memory_stats(-1),
    "memory_allocated": lambda: torch.xla.memory_allocated(NOWHERE),
    "max_memory_allocated": lambda: torch.xla.max_memory_allocated(NOWHERE),
    "get_device_name": lambda: torch.xla.get_device_name(7),
    "synchronize": lambda: torch.xla.synchronize(7),
    "loader": lambda: next(iter(surestep.MpDeviceLoader([torch.ones(1)], NOWHERE))),
    **{f"{name}, from xla": lambda make=make: make(torch.ones(2, 3, device="xla"), NOWHERE) for name, make in LIKE.items()},
}


@pytest.mark.parametrize("name", ASKED)
def test_a_device_that_is_not_there_is_an_error(name):
    with pytest.raises(RuntimeError, match=r"^invalid device ordinal: xla:(7|-1). This process has 1 xla device"):
        ASKED[name]()
    assert torch.xla.current_device() == 0


@pytest.mark.parametrize("name", ["set_device", "get_rng_state", "memory_stats"])
def test_another_kind_of_device_is_an_error(name):
    with pytest.raises(ValueError, match="Expected a xla device, but got: cuda:0"):
        getattr(torch.xla, name)("cuda:0")
