"""All entries of PyTorch's three databases, by a name that is stable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from conformance.case import Case


class Entry(NamedTuple):
    kind: str  # "op", "module" or "optimizer"
    name: str
    info: Any

    @property
    def key(self) -> str:
        return self.name if self.kind == "op" else f"{self.kind}:{self.name}"

    def cases(self, dtypes: set[torch.dtype], limit: int | None) -> Iterator[Case]:
        # imported here: a process that only lists entries needs none of it
        from conformance import modules, operators, optimizers

        maker = {"op": operators, "module": modules, "optimizer": optimizers}[self.kind]
        return maker.cases(self.info, dtypes, limit)


def entries(only: str = "", shard: tuple[int, int] = (0, 1)) -> list[Entry]:
    """Those whose key matches, in the databases' order; of those every n-th."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    found = [Entry("op", op.name + (f"-{op.variant_test_name}" if op.variant_test_name else ""), op) for op in op_db]
    found += [Entry("module", info.name, info) for info in module_db]
    found += [Entry("optimizer", info.optim_cls.__name__, info) for info in optim_db]
    seen: dict[str, int] = {}
    unique = []
    for entry in found:  # a few modules are there more than once, with other inputs
        count = seen[entry.key] = seen.get(entry.key, 0) + 1
        unique.append(entry if count == 1 else entry._replace(name=f"{entry.name}-{count}"))
    chosen = [entry for entry in unique if re.search(only, entry.key)]
    return chosen[shard[0] :: shard[1]]
