"""Environment variables that change what torch_xla computes, and that surestep doesn't know: set ones are said, not passed over."""

from __future__ import annotations

import os
import warnings

_INSTEAD = {
    "XLA_AUTO_SPMD": "there is no automatic sharding. Say how tensors lie, with torch_xla.distributed.spmd.mark_sharding",
    "XLA_DOWNCAST_BF16": "tensors keep their own dtype. Use torch.autocast('xla', dtype=torch.bfloat16), or model.to(torch.bfloat16)",
    "XLA_DOWNCAST_FP16": "tensors keep their own dtype. Use torch.autocast('xla', dtype=torch.float16), or model.to(torch.float16)",
    "XLA_USE_BF16": "tensors keep their own dtype. Use torch.autocast('xla', dtype=torch.bfloat16), or model.to(torch.bfloat16)",
    "XLA_USE_FP16": "tensors keep their own dtype. Use torch.autocast('xla', dtype=torch.float16), or model.to(torch.float16)",
}


_told: set[str] = set()


def warn() -> None:
    """Warns of each variable that is set, once: as torch_xla is imported, and as the device is first used, for those set in between."""
    for name, instead in _INSTEAD.items():
        if name not in _told and os.environ.get(name, "0").lower() not in ("", "0", "false", "off"):
            _told.add(name)
            warnings.warn(f"{name}={os.environ[name]} has no effect: {instead}", stacklevel=2)
