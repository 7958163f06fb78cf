"""torch.compile's backends ``openxla`` and ``openxla_eval``. Under ``surestep run`` this module stands in the place of PyTorch's own.

PyTorch's ask AOTAutograd, which can't look into tensors on the device. There is no need: a graph is recorded and compiled
as it runs, with its derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo import register_backend


def recorded(graph: Callable[..., Any], inputs: list[Any]) -> Callable[..., Any]:
    """What a graph that was traced is run by: itself."""
    return graph


for name in ("openxla", "openxla_eval"):
    register_backend(recorded, name)
