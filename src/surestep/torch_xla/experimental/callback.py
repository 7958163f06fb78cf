"""torch_xla.experimental.callback"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from surestep.tensor import interchange

__all__ = ["on_ready_callback"]


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], Any]) -> None:
    """Calls ``callback(tensor)`` on another thread when the device has computed the tensor. What is recorded for it is run now.

    Raises:
        TypeError: The tensor isn't on the xla device.
    """
    array = interchange.to_jax(tensor)

    def wait() -> None:
        array.block_until_ready()
        callback(tensor)

    threading.Thread(target=wait, name="on_ready_callback").start()
