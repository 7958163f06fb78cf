"""A step that is told on the device whether to do anything. PyTorch's own optimizers are so already under a GradScaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surestep.loop import updates
from surestep.tensor.xla_tensor import XlaTensor


class OptionalStep(torch.optim.Optimizer):
    """Comes before one of ``torch.optim``'s optimizers among the bases of a class."""

    def __init_subclass__(cls) -> None:
        kind = cls.__mro__[2]
        plain = kind.step
        cls._plain = getattr(plain, "__wrapped__", plain) if hasattr(plain, "hooked") else plain
        updates.KINDS[cls] = updates.KINDS[kind]

    _plain: Callable[..., Any]  # the optimizer's own step, without the hooks that PyTorch calls around this one

    def step(self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None) -> Any:  # type: ignore[bad-override]
        """As the optimizer's; nothing changes where ``found_inf``, a tensor of one number, isn't 0. It isn't read.

        Raises:
            ValueError: ``found_inf`` has dimensions.
            TypeError: It is no tensor on the xla device.
        """
        if found_inf is None:
            return self._plain(closure)
        if not isinstance(found_inf, XlaTensor):
            raise TypeError(f"found_inf must be a tensor on the xla device, and this is {found_inf!r}")
        if found_inf.shape:
            raise ValueError(f"found_inf must be a tensor of one number, without dimensions, and has the shape {list(found_inf.shape)}")
        with updates.unless(found_inf):
            return self._plain(closure)
