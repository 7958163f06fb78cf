"""How the operations of an entry were served: lowered, by PyTorch's decomposition, or by the host."""

from __future__ import annotations

from typing import Any

from surestep import _compat
from surestep.observe import events
from surestep.observe.events import Cause
from surestep.tensor import dispatch, xla_tensor
from surestep.tensor.operation import Operation


def decomposed(func: Any) -> bool:
    """Whether the dispatcher serves an overload by rewriting it (see tensor/dispatch.py for the order)."""
    if func in dispatch._OWN or func.is_view or "foreach" in func.name():
        return False
    if func.namespace == "aten" and Operation(func).lowering is not None:
        return False
    return _compat.has_composite_kernel(func) or _compat.decomposition(func) is not None


# It reads whether a factorization failed, to raise: nothing is computed on the host.
CHECKS = {"aten._linalg_check_errors.default"}


class Watch:
    """Listens while an entry's cases run. ``note`` says which way and dtype what follows belongs to."""

    def __init__(self):
        self.way, self.dtype = "", ""
        self.host: dict[str, dict[str, set[str]]] = {}
        self.shape: dict[str, dict[str, set[str]]] = {}
        self.rewritten: dict[str, set[str]] = {}
        self.known: set[int] = set()
        xla_tensor.HANDLERS.clear()  # so that the overloads which arrive are those of this entry

    def __enter__(self) -> Watch:
        self.stop = events.listen(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _heard(self, event: events.Event) -> None:
        if event.name == "fallback":
            read = event.data["cause"] is Cause.SHAPE or event.data["operation"] in CHECKS
            where = self.shape if read else self.host
            where.setdefault(self.way, {}).setdefault(event.data["operation"], set()).add(self.dtype)

    def note(self, way: str, dtype: str = "") -> None:
        self.settle()
        self.way, self.dtype = way, dtype or self.dtype

    def settle(self) -> None:
        """What arrived since the last change of way belongs to it."""
        new = xla_tensor.HANDLERS.keys() - self.known
        if new:
            self.known |= new
            for func in [f for f in xla_tensor._kept if id(f) in new]:
                if decomposed(func):
                    self.rewritten.setdefault(self.way, set()).add(str(func))

    def result(self) -> dict[str, Any]:
        self.settle()

        def plain(table: dict[str, dict[str, set[str]]]) -> dict[str, dict[str, list[str]]]:
            ways = {way: {name: sorted(of) for name, of in sorted(names.items())} for way, names in sorted(table.items())}
            return {way: names for way, names in ways.items() if way != "errors"}

        rewritten = {way: sorted(names) for way, names in sorted(self.rewritten.items()) if way != "errors"}
        return {"host": plain(self.host), "shape": plain(self.shape), "decomposed": rewritten}
