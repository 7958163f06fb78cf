"""``torch_xla.amp`` to PyTorch's own ``torch.autocast`` and ``torch.amp.GradScaler``."""

from __future__ import annotations

from collections.abc import Iterator

from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Fix
from surestep.lint.program import Call, Program

_SCALER_ARGUMENTS = frozenset(["init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"])


def to_torch(program: Program) -> Iterator[Fix | None]:
    """Calls whose arguments are named, so that they mean the same."""
    torch = program.alias("torch")
    for call in program.calls if torch is not None else ():
        given = {keyword.arg for keyword in call.node.keywords}
        if call.name == "torch_xla.amp.autocast" and len(call.node.args) <= 1 and given <= {"device", "enabled", "dtype", "cache_enabled"}:
            yield _replaced(program, call, f"{torch}.autocast")
        elif call.name == "torch_xla.amp.GradScaler" and not call.node.args and given <= _SCALER_ARGUMENTS:
            yield _replaced(program, call, f"{torch}.amp.GradScaler")


def _replaced(program: Program, call: Call, name: str) -> Fix:
    kept = [text_of(program.source, keyword) for keyword in call.node.keywords if keyword.arg != "device"]
    arguments = ['"xla"', *kept]
    return Fix((replace(program.source, call.node, f"{name}({', '.join(arguments)})"),), safe=True)
