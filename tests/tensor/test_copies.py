"""To the device and back: values, dtypes, strides, and memory that nobody else can change."""

import numpy as np
import pytest
import torch

import surestep
from both import same

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_there_and_back(dtype):
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    there = tensor.to("xla")
    assert there.dtype is dtype and there.device == torch.device("xla:0")
    back = there.cpu()
    assert back.dtype is dtype and torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_int64_and_float64_stay_exact():
    assert torch.tensor([2**62 + 1], device="xla").item() == 2**62 + 1
    assert (torch.tensor(1.0, dtype=torch.float64, device="xla") + 1e-15).item() == 1.0 + 1e-15


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 4096, 100_000])
def test_a_later_write_to_the_host_memory_is_not_seen(size):
    host = torch.zeros(size)
    tensor, later = host.to("xla"), torch.empty(size, device="xla").copy_(host)
    array = np.zeros(size, np.float32)
    from_array = torch.from_numpy(array).to("xla")
    host.fill_(1)
    array.fill(1)
    assert tensor.sum().item() == later.sum().item() == from_array.sum().item() == 0


def test_a_write_to_what_was_read_is_not_seen_either():
    tensor = torch.zeros(64, device="xla")
    tensor.cpu().fill_(1)
    assert tensor.sum().item() == 0


def test_to_changes_dtype_and_device_at_once():
    assert torch.ones(2).to("xla", torch.float16).dtype is torch.float16
    assert torch.ones(2, device="xla").to("cpu", torch.int32).dtype is torch.int32


def test_strides_survive_the_way_back():
    tensor = torch.arange(6.0, device="xla").reshape(2, 3).t()
    assert tensor.stride() == tensor.cpu().stride() == (1, 3)
    image = torch.randn(2, 3, 4, 5).to("xla").to(memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last) and torch.equal(image.cpu(), image.contiguous().cpu())


def test_copy_between_both_with_cast_and_broadcast():
    same(lambda a, b: a.copy_(b), torch.zeros(2, 3), torch.arange(3))
    target = torch.zeros(2, 3)
    assert target.copy_(torch.arange(3, device="xla")).tolist() == [[0, 1, 2], [0, 1, 2]]
    device_target = torch.zeros(2, 3, device="xla")
    assert device_target.copy_(torch.arange(3)).tolist() == [[0, 1, 2], [0, 1, 2]]
    device_target[1].copy_(torch.tensor([7.0, 8.0, 9.0]))
    assert device_target.tolist() == [[0, 1, 2], [7, 8, 9]]


def test_uninitialized_memory_of_odd_strides():
    tensor = torch.empty_strided((2, 2), (5, 2), device="xla")
    assert tensor.stride() == (5, 2)
    tensor.fill_(3)
    assert tensor.tolist() == [[3, 3], [3, 3]]


def test_what_the_device_cannot_hold_is_a_clear_error():
    with pytest.raises(RuntimeError, match=r"XLA's arrays are dense.*to_dense"):
        torch.eye(2).to_sparse().to("xla")
    with pytest.raises(TypeError, match="complex32"):
        torch.empty(2, dtype=torch.complex32, device="xla")
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="xla", pin_memory=True)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="xla")


def test_numpy_is_asked_of_the_cpu_copy():
    tensor = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match=r"can't convert xla:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        tensor.numpy()
    assert tensor.cpu().numpy().tolist() == [1, 1] and tensor.numpy(force=True).tolist() == [1, 1]


def test_jax_takes_and_gives_arrays_without_a_copy_that_later_steps_could_reach():
    import jax

    from surestep.tensor.interchange import from_jax, to_jax

    tensor = torch.arange(4.0, device="xla")
    array = to_jax(tensor)
    for _ in range(3):
        tensor.add_(1)
        surestep.sync()
    assert isinstance(array, jax.Array) and array.tolist() == [0, 1, 2, 3] and tensor.tolist() == [3, 4, 5, 6]
    ours = from_jax(array)
    ours.mul_(2)
    surestep.sync()
    assert array.tolist() == [0, 1, 2, 3] and ours.tolist() == [0, 2, 4, 6]


def test_dlpack_exports_a_snapshot():
    tensor = torch.arange(3.0, device="xla")
    shared = torch.from_dlpack(tensor)
    tensor.add_(1)
    surestep.sync()
    assert shared.device.type == "cpu" and shared.tolist() == [0, 1, 2] and tensor.tolist() == [1, 2, 3]


LAYOUTS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "permuted": lambda x: x.permute(3, 0, 2, 1),
    "permuted slice": lambda x: x.permute(3, 0, 2, 1)[1:3],
    "slice": lambda x: x[:, 1:],
    "every second": lambda x: x[..., ::2],
    "selected": lambda x: x[1].transpose(0, 1),
    "flipped": lambda x: x.flip(0).mT,
    "expanded": lambda x: x[:, :1].expand(2, 3, 4, 5),
    "expanded twice": lambda x: x[:1, :, :1].expand(7, 3, 4, 5),
    "expanded from a number": lambda x: x[0, 0, 0, 0].expand(3, 4),
    "diagonal": lambda x: x.diagonal(dim1=0, dim2=2),
    "unfolded": lambda x: x.unfold(3, 3, 1),
    "as_strided": lambda x: x.as_strided((3, 2), (1, 3), 4),
    "overlapping": lambda x: x.as_strided((3, 3), (1, 1)),
    "a dimension of one": lambda x: x[:, :1].transpose(0, 3),
    "no elements": lambda x: x[:0].transpose(1, 2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "slice of channels last": lambda x: x.contiguous(memory_format=torch.channels_last)[:, 1:],
    "a number": lambda x: x[0, 0, 0, 0],
    "another dtype's view": lambda x: x.view(torch.int16)[..., 1::2],
    "real part": lambda x: torch.view_as_complex(x.reshape(2, 3, 5, 2, 2)).mT.real,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_to_the_cpu_lies_as_pytorch_says(name):
    """Strides without holes are kept; else the copy has those of a new tensor (``empty_like`` with ``preserve_format``)."""
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    here, there = LAYOUTS[name](x), LAYOUTS[name](x.to("xla"))
    wanted = torch.empty_like(here)
    for copy in (there.cpu(), there.to("cpu"), there.to("cpu", copy=True), there.clone().cpu(), there.to("cpu", torch.float64)):
        assert copy.stride() == wanted.stride() and copy.storage_offset() == 0
        assert copy.untyped_storage().nbytes() == wanted.numel() * copy.element_size()
        assert torch.equal(copy, here.to(copy.dtype))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_to_the_device_lies_as_pytorch_says_of_a_device_without_strides(name):
    """``.to("xla")`` gives a contiguous tensor, or one in the memory format that the strides suggest; ``empty_like`` has the strides."""
    here = LAYOUTS[name](torch.arange(120.0).reshape(2, 3, 4, 5))
    there = here.to("xla")
    assert there.is_contiguous(memory_format=torch.channels_last if "channels last" in name else torch.contiguous_format)
    assert torch.equal(there.cpu(), here)
    assert torch.empty_like(here, device="xla").copy_(here).stride() == torch.empty_like(here).stride()


def test_what_inference_mode_made_can_be_copied_outside_of_it():
    with torch.inference_mode():
        made = torch.arange(3, device="xla") + 1
        assert made.cpu().tolist() == [1, 2, 3]
    assert made.cpu().tolist() == made.to("cpu", torch.float32).tolist() == made.float().tolist() == [1, 2, 3]


@pytest.mark.parametrize("maker", ["tensor", "as_tensor", "Tensor", "new_tensor on CPU", "new_tensor on xla"])
def test_a_tensor_is_made_of_numbers_on_the_device(maker):
    name, _, device = maker.partition(" on ")
    make = getattr(torch.ones(1, device=device.lower()) if device else torch, name)
    matrix = torch.arange(6.0, device="xla").view(2, 3).mul(2)
    assert make([matrix[0, 1], matrix.sum(), 0.5]).tolist() == [2, 30, 0.5]  # pending
    assert make([[matrix[1, 2].long()], [matrix[1, 0] > 5]]).tolist() == [[10], [1]]


def test_complex_numbers_on_the_device_make_a_tensor():
    number = torch.tensor(1 + 2j, device="xla")
    assert torch.tensor([number, number.conj()]).tolist() == [1 + 2j, 1 - 2j]
