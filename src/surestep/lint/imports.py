"""Imports that new text needs, and where they go."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from surestep.lint.edits import after_line, margin
from surestep.lint.findings import Edit
from surestep.lint.program import Program

# How a module is imported where the file hasn't done so yet.
ALIASES = {
    "torch_xla.core.xla_model": "xm",
    "torch_xla.runtime": "xr",
    "torch_xla.distributed.parallel_loader": "pl",
    "torch_xla.distributed.spmd": "xs",
}
_BINDING = (ast.Import, ast.ImportFrom)


def import_line(module: str) -> str:
    """The statement that imports a module under its usual name."""
    return f"import {module} as {ALIASES[module]}" if module in ALIASES else f"import {module}"


def import_edits(program: Program, modules: Iterable[str]) -> list[Edit]:
    """An import at the top of the file of each module that isn't there at module level already, after the imports that begin it."""
    source = program.source
    missing = [module for module in dict.fromkeys(modules) if program.alias(module) is None]
    if not missing:
        return []
    last: ast.stmt | None = None
    for node in program.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, _BINDING) or (is_docstring and last is None):
            last = node
        else:
            break
    lines = [import_line(module) for module in missing]
    if last is None or (source.notebook is not None and not isinstance(last, _BINDING)):
        return [Edit(0, 0, "".join(f"{line}\n" for line in lines))]
    assert last.end_lineno is not None
    return [after_line(source, last.end_lineno, "\n".join(lines))]


def spelled(program: Program, name: str) -> tuple[str, str | None]:
    """How a qualified name is written in this file, and the import that it needs, if it isn't there yet."""
    module, _, last = name.rpartition(".")
    if (alias := program.alias(module)) is not None:
        return f"{alias}.{last}", None
    short = ALIASES.get(module, module.partition(".")[0])
    taken = (short in program.assigned or any(name == short for name, _ in program.imports)) and not (
        short == module.partition(".")[0] and program.alias(short) == short
    )
    if short in ALIASES.values() and taken:
        return name, f"import {module}"
    return (f"{short}.{last}" if module in ALIASES else name), import_line(module)


def beside(program: Program, bound: str, line: str) -> list[Edit] | None:
    """An import after each statement that binds a name, under the same conditions and in the same scope. None where there is no room for
    it, or where the name that it binds means something else in the file.
    """
    module, _, alias = line.removeprefix("import ").partition(" as ")
    if (alias or module.partition(".")[0]) in program.assigned:
        return None
    edits = []
    for name, statement in program.imports:
        if name != bound:
            continue
        before = margin(program.source, statement)
        assert statement.end_lineno is not None
        if before is None or ";" in program.source.lines[statement.end_lineno - 1]:
            return None
        edits.append(after_line(program.source, statement.end_lineno, before + line))
    return edits or None
