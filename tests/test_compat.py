"""What we lean on in PyTorch that isn't public, and the faults we work around: each test fails when the workaround can go."""

import subprocess
import sys

import pytest
import torch

import surestep
from surestep import _compat


def in_a_fresh_process(*lines):
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)


def test_the_registry_is_checked_before_it_is_written():
    done = in_a_fresh_process(
        "import torch",
        "from surestep import _compat",
        "try: _compat.register_device_guard()",
        "except ImportError as error: print(error)",
    )
    assert "taken already" in done.stdout  # importing surestep._compat imports surestep, which registered


@pytest.mark.parametrize("name", [name for name, value in vars(_compat).items() if callable(value) and not name.startswith("__")])
def test_every_private_name_is_there(name):
    assert callable(getattr(_compat, name))


def test_pytorch_has_no_xla_guard_of_its_own():
    """When it has one, ours can go."""
    done = in_a_fresh_process("import torch", "torch.empty(2, device='xla')")
    assert done.returncode != 0 and "xla" in done.stderr.lower()


def test_the_guard_counts_one_device_only():
    """When PyTorch's Python guard can say how many devices there are, backward need not be kept on the calling thread."""
    assert [name for name in dir(torch._C._acc.DeviceGuard) if not name.startswith("_")] == ["type_"]


def test_it_is_known_when_pytorch_asks_the_guard():
    """PyTorch looks `type_` up, runs signal handlers, and calls what it found, where nothing can be thrown."""
    guard = _compat._Guard()
    assert not _compat.guard_is_asked()
    answer = guard.type_
    assert _compat.guard_is_asked()
    assert answer() is torch._C._autograd.DeviceType.XLA and not _compat.guard_is_asked()


def test_manual_seed_does_not_know_xla():
    """When PyTorch seeds every registered device module, `torch.privateuseone` need not listen for us."""
    import inspect

    assert "xla" not in inspect.getsource(torch.random)


def test_the_dispatcher_is_not_told_of_data_assignment():
    """When `.data = x` dispatches, XlaTensor.data need not be a property."""
    seen = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    tensor, value = torch.ones(2), torch.zeros(3)
    with Watched():
        tensor.data = value
    assert seen == []


def test_a_module_that_leaves_the_device_gets_new_parameters_from_pytorch():
    """When Module._apply swaps them by itself, tensor/moving.py can go."""
    assert not torch._has_compatible_shallow_copy_type(torch.ones(1, device="xla"), torch.ones(1))


def test_pytorch_holds_xla_for_a_device_without_strides():
    """When `Device.supports_as_strided` is true for xla, .to('xla') keeps strides by itself."""
    moved = torch.ones(2, 3).t().to("xla")
    assert moved.stride() == (2, 1)


def test_accelerators_are_a_fixed_list():
    assert surestep.device_count() == 1 and torch.accelerator.current_accelerator() is None
