"""torch_xla.distributed.fsdp.wrap: which submodules become units of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

__all__ = [
    "always_wrap_policy",
    "lambda_auto_wrap_policy",
    "recursive_wrap",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Each submodule."""
    return True


def lambda_auto_wrap_policy(module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]) -> bool:
    """Those for which ``lambda_fn(submodule)`` is true; to be used with ``functools.partial``."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: Collection[type[nn.Module]]
) -> bool:
    """The layers of a transformer: those of the classes given with ``functools.partial``."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


class _SizeBased:
    """A function with two defaults that may be changed on it."""

    EXCLUDE_WRAP_MODULES: Collection[type[nn.Module]] = {nn.ModuleList, nn.ModuleDict}
    FORCE_LEAF_MODULES: Collection[type[nn.Module]] = {nn.MultiheadAttention}

    def __call__(
        self,
        module: nn.Module,
        recurse: bool,
        unwrapped_params: int,
        min_num_params: int = int(1e8),
        force_leaf_modules: Collection[type[nn.Module]] | None = None,
        exclude_wrap_modules: Collection[type[nn.Module]] | None = None,
    ) -> bool:
        """Those with at least ``min_num_params`` parameters that aren't in a unit further down.

        Args:
            module: The submodule that is asked about.
            recurse: Whether the question is if its submodules may be wrapped, or if itself shall be.
            unwrapped_params: How many parameters of it aren't wrapped yet.
            min_num_params: From how many on; to be set with ``functools.partial``.
            force_leaf_modules: Classes whose submodules are never wrapped. FORCE_LEAF_MODULES if None.
            exclude_wrap_modules: Classes that are never wrapped themselves. EXCLUDE_WRAP_MODULES if None.
        """
        leaves = self.FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
        excluded = self.EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
        return unwrapped_params >= min_num_params and not isinstance(module, tuple(leaves if recurse else excluded))


size_based_auto_wrap_policy = _SizeBased()


def check_policy(policy: Any) -> None:
    """``TypeError`` for what can't be asked about submodules: no function, a class, one whose other arguments aren't set."""
    try:
        inspect.signature(policy).bind(module=None, recurse=True, unwrapped_params=0)
    except TypeError as error:
        raise TypeError(
            f"auto_wrap_policy={policy!r} can't be called with module=, recurse= and unwrapped_params=: {error}. Take one of "
            f"torch_xla.distributed.fsdp.wrap, and set what else it takes by functools.partial: to wrap the layers of some classes, "
            f"functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{...}})"
        ) from None


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Collection[nn.Module],
    ignored_params: Collection[torch.nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps submodules from the bottom up, where the policy says so.

    Args:
        module: Whose submodules are wrapped, and itself unless ``only_wrap_children``.
        auto_wrap_policy: ``auto_wrap_policy(module=, recurse=, unwrapped_params=)``.
        wrapper_cls: ``wrapper_cls(submodule, **kwargs)``; a submodule's attribute ``_wrap_overrides`` replaces some of ``kwargs``.
        ignored_modules: What isn't wrapped.
        ignored_params: What isn't counted.
        only_wrap_children: Whether the module itself is left as it is.
        **kwargs: For ``wrapper_cls``.

    Returns:
        The module, wrapped or not, and how many of its parameters are wrapped.
    """
    ignored = set(ignored_params)
    count = sum(parameter.numel() for parameter in module.parameters() if parameter not in ignored)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    wrapped = 0
    for name, child in list(module.named_children()):
        if child in ignored_modules:
            continue
        replacement, number = recursive_wrap(child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs)
        setattr(module, name, replacement)
        wrapped += number
    if only_wrap_children or not auto_wrap_policy(module=module, recurse=False, unwrapped_params=count - wrapped):
        return module, wrapped
    overrides: Any = getattr(module, "_wrap_overrides", {})
    return wrapper_cls(module, **{**kwargs, **overrides}), count
