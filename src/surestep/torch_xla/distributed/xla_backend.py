"""torch_xla.distributed.xla_backend: importing it makes the process group 'xla' known to torch.distributed, which asks here for one.

There is none yet: asking is an error that says so, rather than torch.distributed's "unknown backend".
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch.distributed as dist

from surestep.torch_xla import _later


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "init_process_group('xla'): surestep runs one process with one device so far, and has no process group for it. "
        "Leave init_process_group and DistributedDataParallel out: with one replica the training is the same."
    )


if "xla" not in dist.Backend.backend_list:
    dist.Backend.register_backend("xla", _refuse, devices="xla")
    dist.register_rendezvous_handler("xla", _refuse)

__getattr__ = _later.getter("torch_xla.distributed.xla_backend")
