"""torch_xla.distributed.zero_redundancy_optimizer: each process keeps the optimizer's state of a part of each parameter (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch.optim import Optimizer

from surestep.execute.world import world
from surestep.loop.boundaries import sync, within_a_step
from surestep.parallel import collectives
from surestep.parallel.collectives import Members
from surestep.parallel.shards import Cut

__all__ = ["ZeroRedundancyOptimizer"]

Groups = list[list[int]] | None


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer whose state is sharded. Its step reduces gradients to each process's part, updates the parts, and gathers them.

    So ``step()`` is all there is to write: no ``xm.optimizer_step``, no ``xm.reduce_gradients``. Parameters are cut along dimension 0; an
    optimizer that looks at a whole parameter (LAMB's norms) sees a part of it.

    Args:
        params: Parameters on the device, or groups of them.
        optimizer_class: Of which the optimizer of the parts is.
        optimizer_dtype: Of the parts and of the optimizer's state; float32 if None.
        grad_clipping: Whether the norm of all gradients is clipped.
        max_norm: To what; 1.0 if None.
        pin_layout: Accepted as torch_xla has it; layouts are XLA's business here.
        sharding_groups: Groups of ordinals in which parameters are sharded and gradients reduced; all processes in one if None.
        grad_norm_groups: Groups of ordinals over which the squared norm is added up once more (of model parallel processes).
        lazy_init: Whether ``init_zero()`` is left to the caller.
        bucket_cap_mb_all_gather: Accepted as torch_xla has it: small parameters always travel together.
        bucket_cap_mb_reduce_scatter: Accepted as torch_xla has it: small gradients always travel together.
        use_grad_acc_hook: Whether gradients are accumulated in ``optimizer_dtype``, as each backward pass ends, and ``grad`` is dropped.
        save_master_weights: Whether ``state_dict()`` holds the parts too: where parameters are of less precision.
        higher_cc_precision: Whether gradients are reduced in ``optimizer_dtype``, not their own.
        **defaults: For ``optimizer_class``.

    Raises:
        TypeError: No class of optimizers, no dtype, or no number.
        ValueError: A parameter isn't on the device, or a group that isn't possible.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Groups = None,
        grad_norm_groups: Groups = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ):
        self.inited = False
        _check(optimizer_class, optimizer_dtype, max_norm)
        super().__init__(params, defaults)
        self.optimizer_class = optimizer_class
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.grad_clipping = grad_clipping
        self.max_norm = 1.0 if max_norm is None else max_norm
        self.save_master_weights = save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self.use_grad_acc_hook = use_grad_acc_hook
        self._sharding_groups = sharding_groups
        self._grad_norm_groups = grad_norm_groups
        self._grad_norm: torch.Tensor | None = None
        self._hooks: list[Any] = []
        if not lazy_init:
            self.init_zero()

    @property
    def sharding_groups(self) -> list[list[int]]:
        """Groups of ordinals in which parameters are sharded; to be set before ``init_zero()``."""
        return self._sharding_groups or [list(range(world().size))]

    @sharding_groups.setter
    def sharding_groups(self, groups: Groups) -> None:
        if self.inited:
            raise RuntimeError("the parameters are sharded already: set sharding_groups before init_zero(), with lazy_init=True")
        self._sharding_groups = groups

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all gradients at the last step, before it was clipped."""
        return self._grad_norm

    def init_zero(self) -> None:
        """Cuts the parameters as they are now, and makes the optimizer of the parts."""
        self._members = Members(self._sharding_groups)
        self.local_rank, self.local_world_size = self._members.position, self._members.size
        self._remove_hooks()
        groups = [{**group, "params": [self._part(p) for p in group["params"]]} for group in self.param_groups]
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        self._settings_to(self.param_groups, self.base_optimizer.param_groups)
        self.inited = True

    def _part(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        if parameter.device.type != "xla":
            raise ValueError(f"a parameter on {parameter.device}: move the model to the device first, with .to('xla')")
        data = self._cut(parameter).part([parameter.detach()], self.local_rank).to(self.optimizer_dtype)
        part = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
        part._is_sharded = True  # type: ignore[attr-defined] (by which others see that it isn't the same on all processes)
        if self.use_grad_acc_hook and parameter.requires_grad:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(partial(_accumulated, part, self.optimizer_dtype)))
        return part

    def _cut(self, parameter: torch.Tensor) -> Cut:
        return Cut((parameter.shape,), self.local_world_size, rows=True)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @staticmethod
    def _settings_to(targets: list[dict[str, Any]], sources: list[dict[str, Any]]) -> None:
        """Learning rates and the like, which a scheduler changes here and the optimizer of the parts reads."""
        for target, source in zip(targets, sources, strict=True):
            target.update({name: value for name, value in source.items() if name != "params"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Before ``init_zero()`` only."""
        if self.inited:
            raise NotImplementedError("add_param_group to a ZeroRedundancyOptimizer: give all groups when it is made")
        super().add_param_group(param_group)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter and its part."""
        groups = zip(self.param_groups, self.base_optimizer.param_groups, strict=True)
        return [pair for ours, base in groups for pair in zip(ours["params"], base["params"], strict=True)]

    # The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:  # type: ignore[override] (torch_xla's signature)
        """One step. ``kwargs`` are for the ``step`` of the optimizer of the parts.

        Returns:
            What ``closure()`` returned.
        """
        if not self.inited:
            raise RuntimeError("the parameters aren't sharded yet: call init_zero() before the first step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._settings_to(self.base_optimizer.param_groups, self.param_groups)
        given = [(p, part, gradient) for p, part in self._pairs() if (gradient := self._gradient(p, part)) is not None]
        self._reduce(given)
        if self.grad_clipping:
            self._clip([part for _, part, _ in given])
        with within_a_step():
            self.base_optimizer.step(**kwargs)
        self.base_optimizer.zero_grad(set_to_none=True)
        self._gather([(p, part) for p, part, _ in given])
        self._settings_to(self.param_groups, self.base_optimizer.param_groups)
        return loss

    def _gradient(self, parameter: torch.Tensor, part: Any) -> torch.Tensor | None:
        return getattr(part, "main_grad", None) if self.use_grad_acc_hook else parameter.grad

    def _reduce(self, given: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
        gradients = [gradient.to(self.optimizer_dtype) if self.higher_cc_precision else gradient for *_, gradient in given]
        padded = [self._cut(gradient).padded([gradient]) for gradient in gradients]
        parts = collectives.reduce_scatter("sum", padded, 0, self._members, 1 / self.local_world_size)
        for (_, part, _), gradient in zip(given, parts, strict=True):
            part.grad = gradient.to(self.optimizer_dtype)

    def _clip(self, parts: list[torch.Tensor]) -> None:
        gradients = [part.grad for part in parts if part.grad is not None]
        if not gradients:
            return
        squares = [torch.stack([gradient.square().sum() for gradient in gradients]).sum()]
        squares = collectives.all_reduce("sum", squares, self._members)
        if self._grad_norm_groups is not None:
            squares = collectives.all_reduce("sum", squares, Members(self._grad_norm_groups))
        self._grad_norm = squares[0].sqrt()
        factor = (self.max_norm / (self._grad_norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)

    def _gather(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        padded = collectives.all_gather([part.detach().to(p.dtype) for p, part in pairs], 0, self._members)
        for (parameter, _), value in zip(pairs, padded, strict=True):
            (whole,) = self._cut(parameter).wholes(value)
            parameter.copy_(whole)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ``Optimizer.zero_grad``, for what was accumulated in ``optimizer_dtype`` too."""
        super().zero_grad(set_to_none=set_to_none)
        if self.inited and self.use_grad_acc_hook:
            for _, part in self._pairs():
                vars(part).pop("main_grad", None)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This process's part: each process must save its own."""
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = {number: parameter.shape for number, (parameter, _) in enumerate(self._pairs())}
        if self.save_master_weights:
            state["sharded_master_weights"] = {number: part.detach() for number, (_, part) in enumerate(self._pairs())}
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override] (a mapping is enough)
        """This process's part, after the model's parameters have been loaded."""
        state = dict(state_dict)
        base, parts = state.pop("base_state"), state.pop("sharded_master_weights", {})
        shapes = state.pop("shape_info", {})
        found = {number: p.shape for number, p in enumerate(p for group in self.param_groups for p in group["params"])}
        if shapes and dict(shapes) != found:
            raise ValueError(f"the state is that of parameters of the shapes {list(shapes.values())}, and these are {list(found.values())}")
        super().load_state_dict(state)
        self.init_zero()
        self.base_optimizer.load_state_dict({**self.base_optimizer.state_dict(), "state": base})
        if parts:
            pairs = self._pairs()
            for number, (_, part) in enumerate(pairs):
                part.copy_(parts[number])
            self._gather(pairs)
            sync()


def _check(optimizer_class: Any, optimizer_dtype: Any, max_norm: Any) -> None:
    if isinstance(optimizer_class, Optimizer) or not callable(optimizer_class):
        raise TypeError(
            f"optimizer_class={optimizer_class!r}: a class, of which the optimizer of the parts is made. Write "
            f"ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=...)"
        )
    if optimizer_dtype is not None and not isinstance(optimizer_dtype, torch.dtype):
        raise TypeError(f"optimizer_dtype={optimizer_dtype!r}: a dtype, such as torch.float32")
    if max_norm is not None and not isinstance(max_norm, (Real, torch.Tensor)):
        raise TypeError(f"max_norm={max_norm!r}: a number, to which the norm of the gradients is clipped")


def _accumulated(part: Any, dtype: torch.dtype, parameter: torch.Tensor) -> None:
    """Moves a gradient that has come to what was accumulated."""
    assert parameter.grad is not None
    gradient, parameter.grad = parameter.grad.detach().to(dtype), None
    part.main_grad = part.main_grad + gradient if hasattr(part, "main_grad") else gradient
