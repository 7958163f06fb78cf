"""torch_xla.distributed.fsdp.XlaFullyShardedDataParallel: a module of whose parameters each process holds a part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from surestep import _compat, _device
from surestep.execute.world import world
from surestep.loop.boundaries import sync
from surestep.loop.nested import is_tensor, replaced
from surestep.parallel import collectives
from surestep.parallel.collectives import Members
from surestep.parallel.sharded import Unit
from surestep.parallel.shards import Cut
from surestep.tensor.xla_tensor import XlaTensor
from surestep.torch_xla.distributed.fsdp import _parameters, wrap
from surestep.torch_xla.distributed.fsdp._parameters import MARK, Place, take_out
from surestep.torch_xla.distributed.fsdp.state_dict_utils import FLATTENED, WRAPPED, original_name, shard_name

__all__ = ["XlaFullyShardedDataParallel"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Groups = list[list[int]] | None
Flattened = tuple[tuple[str, ...], tuple[torch.Size, ...], tuple[int, ...]]  # names, shapes and numbers of elements


class XlaFullyShardedDataParallel(nn.Module):
    """A module whose parameters are sharded: each process keeps its part, and gets the whole ones for the forward and backward passes.

    ``parameters()`` are the parts; make the optimizer after this, and write ``optimizer.step()``: gradients are reduced in the backward
    pass already. Submodules that are wrapped too are units of their own, gathered when they are called; the outermost takes what is left.

    Args:
        module: Whose ``forward`` is called. Parameters and buffers that aren't on the device are sharded first, and then moved.
        reshard_after_forward: Whether the backward pass gathers the parameters again, instead of keeping them from the forward pass.
        flatten_parameters: Whether the parts of all parameters are one tensor; two, if some need no gradients.
        execute_sharding_on_init: Whether ``sync()`` is called at the end, which frees whole parameters that were on the device.
        optimization_barrier_in_forward: Whether parameters are gathered only when the module's inputs have been computed, which takes less
            memory; else XLA may gather them earlier, which hides the time that it takes.
        optimization_barrier_in_backward: Accepted as torch_xla has it: they are gathered again when the gradients of the module called
            after this one have been reduced.
        mark_step_on_finalization: Whether ``sync()`` is called at the end of the backward pass.
        disable_reshard_on_root: Whether the outermost unit is as with ``reshard_after_forward=False``: it would be gathered again at once.
        compute_dtype: Of the whole parameters, and to which floating-point inputs are cast: float32 (the default), float16, bfloat16.
        buffer_dtype: Of floating-point buffers; ``compute_dtype`` if None.
        fp32_reduce_scatter: Whether gradients are reduced in float32, if ``compute_dtype`` is another.
        sharding_groups: Groups of ordinals in which parameters are sharded; all processes in one if None.
        sharding_rank: This process's place in its group; must be given with ``sharding_groups``.
        sharding_world_size: The size of the groups; must be given with ``sharding_groups``.
        shard_param_on_dim_0: Whether parameters are cut along dimension 0, and not flattened.
        pin_layout_in_collective_ops: Accepted as torch_xla has it; layouts are XLA's business here.
        reduce_scatter_bucket_size_mb: Accepted as torch_xla has it: a unit's small gradients always travel together.
        coalesce_all_gather_ops: Accepted as torch_xla has it: a unit's small parameters always travel together.
        auto_wrap_policy: Which submodules are units of their own, one of ``torch_xla.distributed.fsdp.wrap`` for example.
        auto_wrapper_callable: What wraps them: ``callable(submodule, **options)``; this class if None.
        param_init_fn: Fills a module whose own parameters are on ``meta``, in place, and is called for each such one;
            ``reset_parameters()`` after ``to_empty`` if None.
        _shard_size_multiple: Of which the number of elements of a part is a multiple.
        _use_xla_patched_linear: Accepted as torch_xla has it: the backward of ``F.linear`` uses the weight itself here.

    Raises:
        RuntimeError: The module is wrapped already, or has no ``forward``.
        TypeError: No module; a parameter that isn't float32; a policy, or what else is to be called, that can't be.
        ValueError: A dtype, a group or a size that isn't possible.
    """

    gradient_predivide_factor: float
    gradient_postdivide_factor: float

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        mark_step_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Groups = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
    ):
        options = {name: value for name, value in locals().items() if name not in ("self", "module", "__class__")}
        _check_module(module)
        for name, function in (("auto_wrapper_callable", auto_wrapper_callable), ("param_init_fn", param_init_fn)):
            if function is not None and not callable(function):
                raise TypeError(f"{name}={function!r} can't be called")
        if not isinstance(_shard_size_multiple, int) or _shard_size_multiple < 1:
            raise ValueError(f"_shard_size_multiple={_shard_size_multiple!r}: a whole number of elements, from 1 on")
        super().__init__()
        if auto_wrap_policy is not None:
            _wrap_children(module, options)
        self.reshard_after_forward = reshard_after_forward
        self.flatten_parameters = flatten_parameters
        self.optimization_barrier_in_forward = optimization_barrier_in_forward
        self.mark_step_on_finalization = mark_step_on_finalization
        self.disable_reshard_on_root = disable_reshard_on_root
        self.compute_dtype = _checked_dtype("compute_dtype", compute_dtype) or torch.float32
        self.buffer_dtype = _checked_dtype("buffer_dtype", buffer_dtype) or self.compute_dtype
        self.fp32_reduce_scatter = fp32_reduce_scatter
        self.sharding_groups = sharding_groups
        self._members = _checked_members(sharding_groups, sharding_rank, sharding_world_size)
        self.rank, self.world_size = self._members.position, self._members.size
        self.xla_device = _device.device()
        self._rows = shard_param_on_dim_0 and not flatten_parameters
        self._multiple = 1 if shard_param_on_dim_0 else _shard_size_multiple
        self._is_root = True
        self._finalized = -1
        for inner in _units(module):
            inner._is_root = False
        _fill(module, param_init_fn, self.xla_device)
        self._fsdp_wrapped_module = module
        self._flattened: list[Flattened] = []
        self._names: list[str] = []  # of the parameters in the unit
        self._ties: list[tuple[str, Place]] = []  # other names of parameters of this unit, or of an inner one
        self._shard()
        self._cast_buffers()
        self.register_state_dict_post_hook(_mark_parts)
        if execute_sharding_on_init:
            sync()

    # Sharding

    def _shard(self) -> None:
        names: dict[nn.Parameter, list[tuple[str, nn.Module, str]]] = {}
        for prefix, submodule in self._fsdp_wrapped_module.named_modules():
            if isinstance(submodule, XlaFullyShardedDataParallel):
                continue
            for name, parameter in list(submodule._parameters.items()):
                if parameter is not None and not getattr(parameter, "_is_sharded", False):
                    names.setdefault(parameter, []).append((f"{prefix}.{name}" if prefix else name, submodule, name))
        for parameter, places in list(names.items()):
            if hasattr(parameter, MARK):  # tied to one of an inner unit
                self._take_out(places, getattr(parameter, MARK))
                del names[parameter]
            elif parameter.dtype != torch.float32:
                raise TypeError(f"only float32 parameters can be sharded: {places[0][0]} is {parameter.dtype}")
        groups = self._groups(list(names))
        cuts = [Cut(tuple(p.shape for p in group), self.world_size, self._multiple, self._rows) for group in groups]
        self.sharded_params = [
            self._registered(self._named(number, [names[p][0][0] for p in group], cut), group, cut)
            for number, (group, cut) in enumerate(zip(groups, cuts, strict=True))
        ]
        reduce = torch.float32 if self.fp32_reduce_scatter else self.compute_dtype
        self._unit = Unit(self.sharded_params, cuts, self._members, self.compute_dtype, reduce)
        self.set_gradient_divide_factors(*_factors(self.world_size), recursive=False)
        for position, parameter in enumerate(itertools.chain(*groups)):
            first, *others = names[parameter]
            self._names.append(first[0])
            take_out(*first[1:], Place(self._unit, position))
            self._take_out(others, Place(self._unit, position))
        self._recurrent = [submodule for submodule in self._fsdp_wrapped_module.modules() if isinstance(submodule, nn.RNNBase)]

    def _take_out(self, ties: list[tuple[str, nn.Module, str]], place: Place) -> None:
        for full, submodule, name in ties:
            self._ties.append((full, place))
            take_out(submodule, name, place)

    def _groups(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """Those that are one tensor."""
        if not self.flatten_parameters:
            return [[parameter] for parameter in parameters]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        return [group for group in (trained, frozen) if group]

    def _named(self, number: int, names: list[str], cut: Cut) -> str:
        """The name of what is cut, by torch_xla's way of naming."""
        if not self.flatten_parameters:
            return f"{WRAPPED}.{FLATTENED}.{names[0]}"
        self._flattened.append((tuple(f"{FLATTENED}.{name}" for name in names), cut.shapes, tuple(map(math.prod, cut.shapes))))
        return f"{WRAPPED}.flat_param_{number}"

    def _registered(self, name: str, group: list[nn.Parameter], cut: Cut) -> nn.Parameter:
        data = cut.part([parameter.detach() for parameter in group], self.rank).to(self.xla_device)
        part = nn.Parameter(data, group[0].requires_grad)
        part._is_sharded = True  # type: ignore[attr-defined] (by which others see that it isn't the same on all processes)
        part._orig_size = torch.Size([sum(p.numel() for p in group)]) if self.flatten_parameters else group[0].shape  # type: ignore[attr-defined]
        part._orig_name, part._name = name, shard_name(name)  # type: ignore[attr-defined]
        self.register_parameter(part._name, part)  # type: ignore[attr-defined]
        return part

    @torch.no_grad()
    def _cast_buffers(self) -> None:
        for submodule in _outside_of_units(self._fsdp_wrapped_module):
            for name, buffer in submodule.named_buffers(recurse=False):
                dtype = self.buffer_dtype if buffer.is_floating_point() else buffer.dtype
                moved = buffer.to(self.xla_device, dtype)
                if dtype != buffer.dtype:
                    moved._orig_dtype = buffer.dtype  # type: ignore[attr-defined]
                setattr(submodule, name, moved)

    # Use

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        return self._fsdp_wrapped_module

    def __getattr__(self, name: str) -> Any:
        """What this hasn't, the module has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: Any) -> Any:
        return self._fsdp_wrapped_module.__getitem__(key)  # type: ignore[operator] (of an nn.Sequential)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, with whole parameters."""
        if self.compute_dtype != torch.float32:
            args, kwargs = replaced((args, kwargs), lambda tensor: tensor.to(self.compute_dtype), _is_floating)
        again = self.reshard_after_forward and not (self._is_root and self.disable_reshard_on_root)
        after: list[torch.Tensor] = []
        if self.optimization_barrier_in_forward:
            replaced((args, kwargs), after.append, lambda value: isinstance(value, XlaTensor))
        with self._unit.forward(again, after):
            outputs = self._fsdp_wrapped_module(*args, **kwargs)
        for module in self._recurrent:
            module._flat_weights = []  # they hold whole parameters, and make the list anew when these are others
        if self.mark_step_on_finalization and self._is_root and torch.is_grad_enabled():
            replaced(outputs, self._with_hook)
        return outputs

    def _with_hook(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor.register_hook(self._begin_finalization)
        return tensor

    def _begin_finalization(self, gradient: torch.Tensor) -> None:
        """At the first gradient that comes back."""
        if self._finalized != _compat.backward_pass():
            self._finalized = _compat.backward_pass()
            _compat.at_end_of_backward(self._finalize)

    def _finalize(self) -> None:
        for inner in _units(self):
            inner._unit.forget()  # else what was gathered would be kept beyond the boundary
        sync()

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Backward passes inside reduce nothing: whole gradients are kept, and added to those of the next backward pass outside."""
        self._check_root("no_sync")
        units = [inner._unit for inner in _units(self)]
        before = [unit.reduces for unit in units]
        for unit in units:
            unit.reduces = False
        try:
            yield
        finally:
            for unit, reduces in zip(units, before, strict=True):
                unit.reduces = reduces

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Gradients are divided by ``pre`` before they are added up over the processes, and by ``post`` after."""
        for inner in _units(self) if recursive else [self]:
            inner.gradient_predivide_factor, inner.gradient_postdivide_factor = pre, post
            inner._unit.before, inner._unit.after = pre, post

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The parts that have a gradient."""
        return [part for part in self.parameters() if part.grad is not None]

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, groups: Groups = None) -> torch.Tensor:
        """As ``torch.nn.utils.clip_grad_norm_``, which would only see this process's parts. All processes must call it.

        Args:
            max_norm: The norm that the gradients are scaled down to.
            norm_type: Which norm; ``inf`` is the largest absolute value.
            groups: Groups of ordinals over which norms are added up; all processes if None.

        Returns:
            The norm that all gradients together had.
        """
        self._check_root("clip_grad_norm_")
        max_norm, norm_type = float(max_norm), float(norm_type)
        gradients = [part.grad for part in self.params_with_grad if part.grad is not None]
        members = Members(groups)
        local = [torch.linalg.vector_norm(gradient, norm_type) for gradient in gradients] or [torch.zeros((), device=self.xla_device)]
        if norm_type == math.inf:
            (total,) = collectives.all_reduce("max", [torch.stack(local).max()], members)
        else:
            (total,) = collectives.all_reduce("sum", [torch.stack(local).pow(norm_type).sum()], members)
            total = total ** (1.0 / norm_type)
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return total

    def _check_root(self, what: str) -> None:
        if not self._is_root:
            raise RuntimeError(f"{what} of an XlaFullyShardedDataParallel inside another: call it on the outermost")

    # Checkpoints

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parts, by the names that their parameters had before."""
        return [
            (original_name(f"{prefix}.{part._orig_name}" if prefix else part._orig_name), part)  # type: ignore[attr-defined]
            for prefix, unit in self.named_modules()
            if isinstance(unit, XlaFullyShardedDataParallel)
            for part in unit.sharded_params
        ]

    def get_shard_metadata(self) -> dict[str, Any]:
        """What ``consolidate_sharded_model_checkpoints`` must know; to be saved beside ``state_dict()``."""
        shards: dict[str, Any] = {}
        flattened: dict[str, Flattened] = {}
        ties: list[tuple[str, Place]] = []
        names: dict[Place, str] = {}
        for prefix, unit in self.named_modules():
            if not isinstance(unit, XlaFullyShardedDataParallel):
                continue
            begin = f"{prefix}." if prefix else ""
            parts: list[Any] = unit.sharded_params
            shards[prefix] = {part._name: {"_orig_size": part._orig_size, "_orig_name": part._orig_name} for part in parts}
            flattened.update({f"{begin}{WRAPPED}.flat_param_{number}": found for number, found in enumerate(unit._flattened)})
            names.update({Place(unit._unit, position): original_name(begin + name) for position, name in enumerate(unit._names)})
            ties.extend((original_name(begin + name), place) for name, place in unit._ties)
        buffers = {name: {"_orig_dtype": b._orig_dtype} for name, b in self.named_buffers() if hasattr(b, "_orig_dtype")}
        return {
            "shard_info": shards,
            "flatten_info": flattened,
            "buffer_info": buffers,
            "shared_info": {name: names[place] for name, place in ties},
            "world_size": self.world_size,
            "rank": self.rank,
        }

    def extra_repr(self) -> str:
        """What ``print(model)`` says of it."""
        return (
            f"world_size={self.world_size}, rank={self.rank}, compute_dtype={self.compute_dtype}, buffer_dtype={self.buffer_dtype}, "
            f"flatten_parameters={self.flatten_parameters}, reshard_after_forward={self.reshard_after_forward}, "
            f"sharding_groups={self.sharding_groups}"
        )


def _units(module: nn.Module) -> list[XlaFullyShardedDataParallel]:
    return [found for found in module.modules() if isinstance(found, XlaFullyShardedDataParallel)]


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"XlaFullyShardedDataParallel takes a module, and this is {module!r}")
    if isinstance(module, XlaFullyShardedDataParallel):
        raise RuntimeError(
            "the module is an XlaFullyShardedDataParallel already. To wrap parts of a module, wrap these first, then the whole"
        )
    if getattr(module.forward, "__func__", module.forward) is nn.Module.forward:
        raise RuntimeError(
            f"{type(module).__name__} has no forward(): parameters are gathered where that is called. Wrap the modules in it, one by one, "
            f"or the one around it"
        )


def _wrap_children(module: nn.Module, options: dict[str, Any]) -> None:
    if _units(module):
        raise ValueError("auto_wrap_policy for a module of which parts are wrapped already: use the one or the other")
    policy, wrapper = options["auto_wrap_policy"], options["auto_wrapper_callable"] or XlaFullyShardedDataParallel
    wrap.check_policy(policy)
    own = ("auto_wrap_policy", "auto_wrapper_callable")
    inner = {name: value for name, value in options.items() if name not in own}
    wrap.recursive_wrap(module, policy, wrapper, [], [], only_wrap_children=True, **inner)


def _checked_dtype(name: str, dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"{name} must be one of {', '.join(map(str, _DTYPES))}, not {dtype!r}")
    return dtype


def _checked_members(groups: Groups, rank: int | None, size: int | None) -> Members:
    if groups is not None and (rank is None or size is None):
        raise ValueError("sharding_groups needs sharding_rank and sharding_world_size")
    members = Members(groups)
    for name, given, found in (("sharding_rank", rank, members.position), ("sharding_world_size", size, members.size)):
        if given is not None and given != found:
            where = f"sharding_groups={groups}" if groups else f"{world().size} process(es)"
            raise ValueError(f"{name}={given}, and it is {found} of rank {world().rank} with {where}")
    return members


def _factors(size: int) -> tuple[float, float]:
    """By what gradients are divided before and after they are added up: about the same, so that half precision overflows in neither."""
    before = 1
    while size % before == 0 and size / before > before:
        before *= 2
    return float(before), size / before


def _outside_of_units(module: nn.Module) -> list[nn.Module]:
    """The module and those in it that aren't in a unit further down."""
    inner = {submodule for unit in _units(module) for submodule in unit.modules()}
    return [submodule for submodule in module.modules() if submodule not in inner]


def _fill(module: nn.Module, function: Callable[[nn.Module], None] | None, device: torch.device) -> None:
    """Gives values to what is on ``meta``."""
    empty = [m for m in _outside_of_units(module) if any(t.is_meta for t in (*m.parameters(recurse=False), *m.buffers(recurse=False)))]
    if function is not None:
        for submodule in empty:
            function(submodule)
        return
    for submodule in empty:
        if not hasattr(submodule, "reset_parameters"):
            raise RuntimeError(
                f"{type(submodule).__name__} is on meta and has no reset_parameters(): say how it is filled with param_init_fn"
            )
        submodule.to_empty(device=device, recurse=False)
        with torch.no_grad():
            submodule.reset_parameters()  # type: ignore[operator]


def _mark_parts(unit: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """So that ``xm.save`` knows them."""
    for part in unit.sharded_params:
        state[prefix + part._name]._is_sharded = True


def _is_floating(value: Any) -> bool:
    return is_tensor(value) and value.is_floating_point()


_parameters.check_optimizers()
_parameters.check_clipping()
