"""Every private name of PyTorch that surestep leans on: what it is for, in one place. tests/test_compat.py says when one can go."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.abc
import importlib.util
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

# A tensor object without memory, with any sizes, strides, device. No public constructor makes one.
make_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

# Gives a wrapper the C++ storage of another, so that PyTorch knows them for aliases (`is_alias_of`, autograd's view checks).
share_storage: Callable[[torch.Tensor, torch.Tensor], None] = torch._functionalize_unsafe_set

# A PyTorch storage object with a chosen address, never read: `untyped_storage().data_ptr()` tells aliases by it.
# (An UntypedStorage; the stub says Storage.)
storage_at: Callable[[int, torch.device, int], Any] = torch._C._construct_storage_from_data_pointer

# `torch.autograd.set_multithreading_enabled` as a plain call: the context manager would end with its scope.
set_multithreading_enabled: Callable[[bool], None] = torch._C._set_multithreading_enabled

register_device_module: Callable[[str, Any], None] = torch._register_device_module

_CPU_DEVICE, _XLA_SLOT, _PRIVATEUSE1_SLOT, _SLOTS = 0, 9, 20, 24  # c10::DeviceType, and COMPILE_TIME_MAX_DEVICE_TYPES


# PyTorch asks the guard for its type for each node of a graph, in C++ that can't throw: the process ends if a signal's handler raises
# there. It looks `type_` up, which marks the dictionary; then comes the one place at which handlers are run (pybind11 makes a `str`); then
# it calls what it found, which takes the mark away. Nothing of this is Python, in which handlers would be run too: a missing key makes an
# entry, and an endless iterator answers, after it has cleared the dictionary.
_asked: defaultdict[Any, Any] = defaultdict()
_answer = map({None: torch._C._autograd.DeviceType.XLA}.__getitem__, iter(_asked.clear, "never")).__next__
_asked.default_factory = itertools.repeat(_answer).__next__


class _Guard(torch._C._acc.DeviceGuard):
    type_ = property(_asked.__getitem__)  # type: ignore[bad-override] (a method there)


def guard_is_asked() -> bool:
    """Whether PyTorch's C++ is asking the device guard just now: no exception may reach it."""
    return bool(_asked)


def register_device_guard() -> Any:
    """Puts a device guard for 'xla' into PyTorch's registry; returns it, to be kept alive.

    PyTorch has the device type, its dispatch keys and a slot for its guard, which torch_xla's C++ fills. From Python, a guard can only be
    registered for PrivateUse1; it is then moved to the xla slot of the (exported) registry. The layout is checked before anything is
    written.
    """
    libc10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    try:
        registry = (ctypes.c_void_p * _SLOTS).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
    except ValueError as error:
        raise ImportError(
            f"surestep can't register its device with torch {torch.__version__}: its device registry is not exported. {_SUPPORTED}"
        ) from error
    if torch._C._autograd.DeviceType.XLA.value != _XLA_SLOT or registry[0] is None:
        raise ImportError(
            f"surestep can't register its device with torch {torch.__version__}: its device registry has another layout. {_SUPPORTED}"
        )
    if registry[_XLA_SLOT] is not None:
        raise ImportError("surestep can't register its device: the 'xla' device is taken already (is torch_xla imported in this process?)")
    before = registry[_PRIVATEUSE1_SLOT]
    guard = _Guard()
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    if registry[_PRIVATEUSE1_SLOT] in (None, before):
        raise ImportError(f"surestep can't register its device with torch {torch.__version__}: the guard landed elsewhere. {_SUPPORTED}")
    registry[_XLA_SLOT], registry[_PRIVATEUSE1_SLOT] = registry[_PRIVATEUSE1_SLOT], before
    return guard


def label_generator(generator: torch.Generator, index: int) -> None:
    """Makes a new CPU generator say that it is for ``xla:index``.

    PyTorch takes nothing but its own C++ generators, and makes none for xla: it would ask torch_xla's C++. What is for the CPU looks at the
    label, and refuses it, as it refuses CUDA's. In memory the label, a c10::Device, is the word before the set of dispatch keys, which is
    looked for; nothing is written unless both are found.
    """
    words = (ctypes.c_uint64 * 16).from_address(generator_identity(generator))
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()
    place = list(words).index(keys, 1) - 1 if keys in words[1:] else 0
    label = (ctypes.c_int8 * 2).from_buffer(words, 8 * place)
    if tuple(label) != (_CPU_DEVICE, -1):
        raise RuntimeError(f"surestep can't make a generator with torch {torch.__version__}: generators have another layout. {_SUPPORTED}")
    label[:] = (_XLA_SLOT, index)


def generator_identity(generator: torch.Generator) -> int:
    """The address of a generator's C++ object, which each Python object for it shares."""
    return generator._cdata  # type: ignore[missing-attribute]


# How many hold a tensor's contents in C++ (its Python object is one of them): whether `torch.utils.swap_tensors` will refuse it.
use_count: Callable[[Any], int] = torch.Tensor._use_count  # type: ignore[missing-attribute] (in C; the stub lacks it)


def around_swaps(heard: Callable[[], None]) -> None:
    """``heard`` is called at each swap of two tensors' contents, whoever asks for it: its last part is in C, looked up at each."""
    swap: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl

    def swapped(t1: torch.Tensor, t2: torch.Tensor) -> None:
        heard()
        swap(t1, t2)

    torch._C._swap_tensor_impl = swapped


# What gives a parametrized tensor its new contents, by swapping where it takes the tensor for a traceable wrapper.
PARAMETRIZES = torch.nn.utils.parametrize._maybe_set.__code__


_SUPPORTED = "Supported are torch 2.13 to 2.15; `surestep doctor` prints the versions."


def change_metadata(operation: torch._ops.OpOverload, tensor: torch.Tensor, *arguments: Any) -> None:
    """Runs the meta kernel of an in-place view (``t_``, ``as_strided_``) on a wrapper itself: its own sizes and strides change."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            operation(tensor, *arguments)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


# Nodes of autograd's graph are numbered by each thread as they are made: whether one was made since.
next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr


def sequence_number(node: torch.autograd.graph.Node) -> int:
    """The number of a node; that of an ``AccumulateGrad`` is the largest there is."""
    return node._sequence_nr()


def serve_control_flow(kind: type[torch.Tensor], functions: dict[str, Callable[..., Any]]) -> None:
    """Has PyTorch's operators of control flow call these functions, by name, where a tensor of this kind on the xla device is given.

    Its public functions (``torch.cond``) compile what they are given with dynamo first, which doesn't take tensor subclasses there; for
    ours they call the operator at once. And ours come before PyTorch's own derivatives, which trace the functions: they see to that.
    """
    from torch._higher_order_ops import utils
    from torch._higher_order_ops.associative_scan import associative_scan_op
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.map import map_impl
    from torch._higher_order_ops.scan import scan_op
    from torch._higher_order_ops.while_loop import while_loop_op

    for operator in (associative_scan_op, cond_op, map_impl, scan_op, while_loop_op):
        operator.py_impl(torch._C.DispatchKey.AutogradXLA)(functions[operator.name()])
        operator.py_impl(kind)(functions[operator.name()])
    compiled = getattr(utils, "_hop_compile_and_call", None)
    if compiled is None:  # a PyTorch that calls the operators in another way, or at once
        return

    def call(fn: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        if any(isinstance(leaf, kind) for leaf in tree_leaves((args, kwargs))):
            return fn(*args, **(kwargs or {}))
        return compiled(fn, args, kwargs)

    utils._hop_compile_and_call = call


def associative_scan_as_calls(*args: Any) -> Any:
    """``associative_scan`` as PyTorch does it on any device: calls of the function on halves."""
    from torch._higher_order_ops.associative_scan import associative_scan_op_dense

    return associative_scan_op_dense(*args)


def has_composite_kernel(operation: torch._ops.OpOverload) -> bool:
    """Whether PyTorch itself writes the operation in terms of others (CompositeImplicitAutograd)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), torch._C.DispatchKey.CompositeImplicitAutograd)


def has_explicit_kernel(operation: torch._ops.OpOverload) -> bool:
    """Whether it has a kernel for every device (CompositeExplicitAutograd): a custom operator's, mostly."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), torch._C.DispatchKey.CompositeExplicitAutograd)


def call_explicit_kernel(operation: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """Calls that kernel, which calls other operations."""
    return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def call_composite_kernel(operation: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """Calls the kernel by which PyTorch writes an operation in terms of others; ``decompose`` may have another in Python."""
    return operation._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def has_fake_kernel(operation: torch._ops.OpOverload) -> bool:
    """Whether somebody said what a custom operator gives without computing it (``register_fake``)."""
    definition = OPDEFS.get(operation.name().partition(".")[0])
    if definition is not None:  # of `torch.library.custom_op`, which registers one in any case: it raises if there is none
        return definition._abstract_fn is not None
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), torch._C.DispatchKey.Meta)


def in_dual_level() -> bool:
    """Whether forward-mode differentiation is on."""
    return forward_ad._current_level >= 0


def trace_as_tensors(kind: type[torch.Tensor]) -> None:
    """Lets ``make_fx`` record operations on tensors of this kind that it wasn't given, a module's parameters among them.

    It leaves out kinds that it doesn't know, and takes what comes of them for constants: a graph that gives the same for any operand.
    """
    from torch.fx.experimental import proxy_tensor

    proxy_tensor.HANDLED_TYPES += (kind,)  # type: ignore[assignment] (a tuple of three, by the checker's word)


def keep_from_dynamo(packages: Sequence[str], to_be_traced: Sequence[str]) -> None:
    """Has Dynamo leave the code of packages as it is, but for modules in them whose functions it may trace where they are called.

    After a graph break it compiles whatever Python is run, that under ``__torch_dispatch__`` included. Dynamo is imported when something
    first needs it.
    """

    def tell() -> None:
        from torch._dynamo import trace_rules

        trace_rules.BUILTIN_INLINE_WHEN_CALLED.update(map(_place, to_be_traced))
        for package in packages:
            trace_rules.add(package)

    rules = "torch._dynamo.trace_rules"
    if rules in sys.modules:
        tell()
    else:
        sys.meta_path.insert(0, _AfterImport(rules, tell))


def _place(module: str) -> str:
    """A module's file, or a package's directory."""
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    return found.origin.removesuffix("__init__.py")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function when a module has been imported."""

    def __init__(self, module: str, then: Callable[[], None]):
        self.module, self.then = module, then

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The module's own, whose loader does one thing more."""
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self.then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def is_fake_on(value: Any, kind: str) -> bool:
    """Whether it is a fake tensor that says that it is on this kind of device."""
    return isinstance(value, FakeTensor) and value.fake_device.type == kind


def as_if_on_meta(value: Any) -> torch.Tensor:
    """A fake tensor that lies as this one, and says that it is on `meta`."""
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def is_functional(tensor: torch.Tensor) -> bool:
    """Whether it is what AOTAutograd traces with."""
    return isinstance(tensor, FunctionalTensor)


def outside_of_dispatch() -> Any:
    """A context in which conjugates and negatives are views that are heeded.

    Inside of ``__torch_dispatch__`` the keys that see to them are excluded, since the operands there have none; a CPU kernel that makes one
    for itself (``pinv`` of complex matrices) would have it ignored, and give wrong numbers.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


_BACKEND = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_NO_EXTRAS = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
)


@contextlib.contextmanager
def plain_cpu() -> Iterator[None]:
    """In this block operations on CPU tensors are their kernels only, whatever this thread is in: modes, transforms, autograd, autocast."""
    with torch._C.DisableTorchFunction(), torch._C._ForceDispatchKeyGuard(_BACKEND, _NO_EXTRAS):
        yield


def decomposition(operation: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """PyTorch's own rewriting of an operation in terms of simpler ones, if it has one.

    Some of ``torch._refs`` are one primitive, which calls the operation itself: those rewrite nothing.
    """
    from torch._decomp import decomposition_table

    name = operation._schema.name.removeprefix("aten::").removeprefix("special_")
    primitive = getattr(getattr(torch.ops.prims, name, None), "impl_aten", None)
    if primitive is not None and primitive in (getattr(torch, name, None), getattr(torch.special, name, None)):
        return None
    return decomposition_table.get(operation)


def checkpoint_writer(url: str, threads: int) -> Any:
    """Where torch.distributed.checkpoint writes: any file system that fsspec knows. Its public writers know local directories only."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    return FsspecWriter(url, thread_count=threads, per_thread_copy_ahead=0)


def checkpoint_reader(url: str) -> Any:
    """Where torch.distributed.checkpoint reads, as ``checkpoint_writer``."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(url)


# The backward pass that this code is called from, by a number; -1 outside of any. A nested one (of a checkpoint) has its own.
backward_pass: Callable[[], int] = torch._C._current_graph_task_id


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Calls a function when the backward pass that calls this code is over."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[missing-attribute]


def saved_tensors_hooks() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
    """The innermost ``torch.autograd.graph.saved_tensors_hooks`` in force: hooks inside of it hide them, and must call them themselves."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def serve_fused_optimizers(kind: str) -> None:
    """``torch.optim``'s ``fused=True`` accepts parameters on a kind of device. PyTorch has a list of those in a function."""
    from torch.optim import optimizer

    listed = optimizer._get_fused_kernels_supported_devices
    optimizer._get_fused_kernels_supported_devices = lambda: [*listed(), kind]


def is_scheduled(step: Any) -> bool:
    """Whether an optimizer's ``step`` was wrapped by a scheduler, which notes that it is called, and does no more."""
    return hasattr(step, "_wrapped_by_lr_sched")


def step_hooks(optimizer: torch.optim.Optimizer) -> dict[str, dict[Any, Any]]:
    """The hooks on an optimizer's step, its own and those on all, by what they are: PyTorch's tables themselves."""
    from torch.optim import optimizer as everyone

    return {
        "hooks before its steps": optimizer._optimizer_step_pre_hooks,
        "hooks after its steps": optimizer._optimizer_step_post_hooks,
        "hooks before all optimizers' steps": everyone._global_optimizer_pre_hooks,
        "hooks after all optimizers' steps": everyone._global_optimizer_post_hooks,
    }


def before_fully_shard(check: Callable[[torch.nn.Module], None]) -> None:
    """Calls ``check(module)`` first in ``torch.distributed.fsdp.fully_shard``, if that has been imported: which takes a second."""
    shard = sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard")
    if shard is None:
        return
    original: Any = shard._validate_module  # type: ignore[missing-attribute]
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def validate(module: torch.nn.Module, name: str) -> None:
        check(module)
        original(module, name)

    shard._validate_module = validate  # type: ignore[missing-attribute]


def before_clipping(check: Callable[[list[torch.Tensor]], None]) -> None:
    """Calls ``check(parameters)`` in ``torch.nn.utils.clip_grad_norm_``, before gradients are scaled."""
    clip: Any = torch.nn.utils.clip_grad
    original = clip._clip_grads_with_norm_

    @functools.wraps(original)
    def scale(parameters: Any, *args: Any, **kwargs: Any) -> None:
        check(list(parameters))
        original(parameters, *args, **kwargs)

    clip._clip_grads_with_norm_ = scale


def around_loaded_state(wrap: Callable[[Any], Any]) -> None:
    """``wrap`` gets, and gives, what ``Optimizer.load_state_dict`` calls for each value of the state, with the parameter."""
    kind: Any = torch.optim.Optimizer
    kind._process_value_according_to_param_policy = staticmethod(wrap(kind._process_value_according_to_param_policy))


def around_scaled_step(wrap: Callable[[Any], Any]) -> None:
    """``wrap`` gets, and gives, what ``GradScaler.step`` calls to step an optimizer, or not where a gradient is infinite."""
    kind: Any = torch.amp.GradScaler
    kind._maybe_opt_step = wrap(kind._maybe_opt_step)
