"""``ParallelLoader(loader, [device]).per_device_loader(device)`` to ``MpDeviceLoader(loader, device)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint import vocabulary as names
from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Edit, Fix
from surestep.lint.program import Call, Program
from surestep.lint.rename import named_edits


def parallel_loader(program: Program) -> Iterator[Fix | None]:
    """Both forms: in one expression, and over a variable that is used for nothing else."""
    for call in program.calls:
        device = _device(call) if call.name in names.PARALLEL_LOADER else None
        if device is None:
            continue
        parent = program.parents[call.node]
        if isinstance(parent, ast.Attribute):
            use = _use(program, parent, device)
            if use is not None:
                yield _rewritten(program, call, device, use)
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            yield _over_variable(program, call, device, parent.targets[0].id)


def _over_variable(program: Program, call: Call, device: ast.expr, variable: str) -> Fix | None:
    """All loaders that a function keeps under one name, one after the other, and all that is done with it."""
    made: list[Fix] = []
    edits: list[Edit] = []
    calls = {other.node: other for other in call.function.calls}
    for node in ast.walk(call.function.node):
        if not isinstance(node, ast.Name) or node.id != variable:
            continue
        parent = program.parents[node]
        if isinstance(parent, ast.Assign) and parent.targets == [node]:
            other = calls.get(parent.value) if isinstance(parent.value, ast.Call) else None
            same = other is not None and other.name in names.PARALLEL_LOADER and _same(_device(other), device)
            fix = _rewritten(program, other, device, None) if other is not None and same else None
            if fix is None:
                return None
            made.append(fix)
        elif not isinstance(parent, ast.Delete):
            use = _use(program, parent, device) if isinstance(parent, ast.Attribute) else None
            if use is None:
                return None
            edits.append(replace(program.source, use, variable))
    every = dict.fromkeys([*edits, *(edit for fix in made for edit in fix.edits)])
    return Fix(tuple(every), safe=True) if edits else None


def _same(one: ast.expr | None, other: ast.expr) -> bool:
    return one is not None and ast.dump(one) == ast.dump(other)


def _rewritten(program: Program, call: Call, device: ast.expr, whole: ast.Call | None) -> Fix | None:
    named = named_edits(program, call.node.func, f"{names.PL}.MpDeviceLoader")
    if named is None:
        return None
    function, *imports = named
    source = program.source
    arguments = [text_of(source, call.node.args[0]), text_of(source, device), *(text_of(source, keyword) for keyword in call.node.keywords)]
    return Fix((replace(source, whole or call.node, f"{function.text}({', '.join(arguments)})"), *imports), safe=True)


def _device(call: Call) -> ast.expr | None:
    """The one device that the loader is for."""
    if len(call.node.args) != 2 or call.has_stars:
        return None
    devices = call.node.args[1]
    return devices.elts[0] if isinstance(devices, ast.List | ast.Tuple) and len(devices.elts) == 1 else None


def _use(program: Program, attribute: ast.Attribute, device: ast.expr) -> ast.Call | None:
    """``.per_device_loader(device)`` of the same device."""
    call = program.parents[attribute]
    same = isinstance(call, ast.Call) and call.func is attribute and attribute.attr == "per_device_loader" and not call.keywords
    if same and isinstance(call, ast.Call) and len(call.args) == 1 and _same(call.args[0], device):
        return call
    return None
