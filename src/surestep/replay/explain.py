"""What a compiled function does, in words."""

from __future__ import annotations

import types
from typing import Any

from surestep.replay.compiled import CompiledFunction


def explain(function: Any) -> str:
    """What a compiled function does, in words: its programs, whether they are replayed and under which guards, or why not."""
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, CompiledFunction):
        raise TypeError(f"explain() takes what compile() returned, not {function!r}")
    lines = [f"{function.name}: {len(function.programs)} program(s), {function.recorded} call(s) recorded"]
    for plans in function.plans.values():
        for plan in plans:
            guards = plan.guards
            lines.append(
                f"  replayed {plan.runs} time(s) as {plan.program.name if plan.program else '?'}: {len(plan.kept)} tensors from outside, "
                f"{plan.count_arguments} from arguments"
            )
            read = sum(len(keys) for _, keys, _ in guards.items.values())
            lines.append(
                f"    guards: {read} attributes and variables, {len(guards.tensors)} tensors, {len(guards.optimizers)} optimizer(s), "
                f"{len(guards.codes)} function(s)"
            )
            changed = plan.changed()
            lines.append(f"    now: {'holds' if changed is None else changed}")
    if not function.plans:
        lines.append("  not replayed" if function.last is None else f"  not replayed: {function.last}")
    elif function.last is not None:
        lines.append(f"  last recorded because: {function.last}")
    return "\n".join(lines)
