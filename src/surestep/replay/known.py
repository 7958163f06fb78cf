"""What is known to compute and do nothing else: the positive list. What isn't here, and isn't the user's own Python that can be followed in
turn, is not replayed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import get_ignored_functions, get_overridable_functions

from surestep.parallel.alike import shard_as
from surestep.parallel.mesh import mark_first, mark_sharding, mark_sharding_with_gradients
from surestep.replay.values import NotReplayable

# Modules whose names are taken to stay what they are.
TRUSTED = {
    "torch",
    "math",
    "operator",
    "functools",
    "dataclasses",
    "builtins",
    "typing",
    "collections",
    "contextlib",
    "surestep",
    "torch_xla",
}

# Modules of ours whose functions are followed as the user's are.
FOLLOWED = {"surestep.torch_xla.experimental.spmd_fully_sharded_data_parallel"}

# Attributes of a tensor that its layout says.
FIGURES = {
    "shape",
    "dtype",
    "device",
    "ndim",
    "layout",
    "requires_grad",
    "is_leaf",
    "is_sparse",
    "is_quantized",
    "is_cuda",
    "is_cpu",
    "is_xla",
}
# Attributes of tensors, and of the named tuples that tensor functions return.
TENSOR_PROPERTIES = FIGURES | {"T", "mT", "H", "mH", "real", "imag", "data", "grad", "itemsize", "nbytes"}
TENSOR_PROPERTIES |= {"logabsdet", "eigenvalues", "eigenvectors", "solution", "Q", "R", "U", "S", "Vh", "logits", "loss"}

# Tensor methods with an effect beyond the values of tensors, or that ask for what is neither a tensor's value nor its figures.
_NOT_METHODS = {
    *("register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "share_memory_", "resize_", "resize_as_"),
    *(
        "set_",
        "pin_memory",
        "data_ptr",
        "storage",
        "untyped_storage",
        "storage_offset",
        "is_set_to",
        "__reduce_ex__",
        "__setstate__",
        "__copy__",
        "__deepcopy__",
        "numpy",
        "tolist",
    ),
    *("record_stream", "module_load", "map_", "map2_", "apply_", "__dlpack__", "rename_", "refine_names", "align_as"),
}
_OF_NUMBERS = {"is_integer", "bit_length"}  # methods of the numbers that `size()` and the like return


@functools.cache
def _tensor_functions() -> frozenset[Any]:
    """PyTorch's own list of functions that take tensors, its factories, and what works in place on parameters and gradients."""
    found: set[Any] = set()
    for holder, functions in get_overridable_functions().items():
        if holder is not torch.Tensor:
            found.update(functions)
    found.update(function for function in get_ignored_functions() if getattr(function, "__module__", "") == "torch.nn.functional")
    factories = (
        *("arange", "empty", "empty_like", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm", "zeros"),
        *("complex", "polar", "tril_indices", "triu_indices", "hann_window", "hamming_window", "blackman_window", "bartlett_window"),
        *("kaiser_window", "is_tensor", "is_storage", "broadcast_shapes", "promote_types", "can_cast", "result_type"),
        *("rand_like", "randn_like", "randint_like", "zeros_like", "ones_like", "full_like", "normal", "empty_strided", "scalar_tensor"),
        *("is_grad_enabled", "get_default_dtype", "is_inference_mode_enabled", "Size", "device", "tensor", "as_tensor"),
    )
    found.update(getattr(torch, name) for name in factories)
    found.update(getattr(torch, name) for name in dir(torch) if name.startswith("_foreach"))
    found.update(getattr(torch.nn.init, name) for name in dir(torch.nn.init) if name.endswith("_") and not name.startswith("_"))
    utils = torch.nn.utils
    found.update((F.scaled_dot_product_attention, torch.autograd.grad, utils.clip_grad_norm_, utils.clip_grad_value_))
    found.update((utils.get_total_norm, utils.clip_grads_with_norm_, utils.parameters_to_vector))
    found.update((mark_first, mark_sharding, mark_sharding_with_gradients, shard_as))
    found -= {torch.from_numpy, torch.save, torch.load, torch.seed, torch.manual_seed, torch.set_rng_state, torch.set_printoptions}
    return frozenset(found)


@functools.cache
def tensor_methods() -> frozenset[str]:
    """Names of tensor methods that compute, and do nothing else."""
    named = {getattr(function, "__name__", "") for function in get_overridable_functions()[torch.Tensor]}
    named |= {name for name in dir(torch.Tensor) if not name.startswith("_") and callable(getattr(torch.Tensor, name))}
    return frozenset((named | _OF_NUMBERS) - _NOT_METHODS)


def is_tensor_function(function: Any) -> bool:
    """Whether it computes tensors from tensors, and does nothing else."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace in ("aten", "prims")
    if isinstance(function, torch._ops.OpOverloadPacket):
        return function._qualified_op_name.partition("::")[0] in ("aten", "prims")
    try:
        return function in _tensor_functions()
    except TypeError:  # not hashable
        return False


# Python's own that compute; `calls` knows how some of them treat what is known.
PURE = frozenset(
    {
        *(
            len,
            range,
            enumerate,
            zip,
            isinstance,
            issubclass,
            min,
            max,
            sum,
            abs,
            float,
            int,
            bool,
            str,
            tuple,
            list,
            dict,
            sorted,
            reversed,
        ),
        *(iter, next),
        *(getattr, hasattr, any, all, round, type, slice, divmod, pow, callable, repr, complex),
    }
)
_NOT_PURE = {name for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__") and name[1:] in dir(operator)}
_NOT_PURE |= {"setitem", "delitem", "call", "is", "is_not", "iconcat", "attrgetter", "itemgetter", "methodcaller"}
MATH = frozenset(
    function
    for module in (math, operator)
    for name, function in vars(module).items()
    if callable(function) and name.strip("_") not in _NOT_PURE
)


@functools.cache
def managers() -> frozenset[Any]:
    """Context managers that set a mode of PyTorch's and set it back."""
    from surestep.loop.boundaries import step

    found = {torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled, torch.autocast, torch.amp.autocast}
    found |= {contextlib.nullcontext, torch.autograd.profiler.record_function, step, torch.nn.attention.sdpa_kernel}
    return frozenset(found)


def named(function: Any) -> str:
    """A function's name, as a user knows it."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or f"a {type(function).__name__}"
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


_WHY = {
    print: "print writes at each call. Give it to add_step_closure, or print outside of the step",
    open: "a file is opened",
    input: "it waits for the keyboard",
    torch.manual_seed: "torch.manual_seed starts the random numbers anew at each call. Seed outside of the step",
}
_WHY_OF = {
    "random": "gives another number at each call. Draw on the device: torch.rand(..., device='xla')",
    "time": "reads the clock. Measure outside of the step",
    "numpy": "computes on the host. Use PyTorch, on the device",
    "logging": "writes at each call. Log outside of the step, or from add_step_closure",
    "surestep": "is a boundary, or does more than to compute. The end of the step is one: leave it out, or call it after the step",
    "torch": "is not known to do the same at each call. Call it outside of the step",
}


def refusal(function: Any) -> NotReplayable:
    """Why a call of something that isn't on the list is not replayed."""
    for known, reason in _WHY.items():
        if function is known:
            return NotReplayable(reason)
    owner = getattr(function, "__self__", None)
    modules = (getattr(function, "__module__", None) or "", type(owner).__module__, getattr(owner, "__name__", "") if owner else "")
    for module in modules:
        why = _WHY_OF.get(str(module).partition(".")[0])
        if why is not None:
            return NotReplayable(f"{named(function)} {why}")
    return NotReplayable(f"what {named(function)} does is not known. Call it outside of the step, and pass what it gives")
