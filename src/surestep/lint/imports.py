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
    if last is None or source.notebook is not None and not isinstance(last, _BINDING):
        return [Edit(0, 0, "".join(f"{line}\n" for line in lines))]
    assert last.end_lineno is not None
    return [after_line(source, last.end_lineno, "\n".join(lines))]


def spelled(program: Program, name: str) -> tuple[str, str | None]:
    """How a qualified name is written in this file, and the module to import for it, if it isn't imported yet."""
    module, _, last = name.rpartition(".")
    if (alias := program.alias(module)) is not None:
        return f"{alias}.{last}", None
    short = ALIASES.get(module, module.partition(".")[0])
    taken = short in _bound(program) and not (short == module.partition(".")[0] and program.alias(short) == short)
    if short in ALIASES.values() and taken:
        return name, module
    return (f"{short}.{last}" if module in ALIASES else name), module


def beside(program: Program, bound: str, module: str) -> list[Edit] | None:
    """The import of a module after each statement that binds a name, under the same conditions and in the same scope. None where there is no room for it, or
    where the module's own name means something else in the file.
    """
    line = import_line(module)
    new = ALIASES.get(module, module.partition(".")[0])
    if any(name == new for name in _assigned(program)):
        return None
    edits = []
    for statement in import_statements(program, bound):
        before = margin(program.source, statement)
        assert statement.end_lineno is not None
        if before is None or ";" in program.source.lines[statement.end_lineno - 1]:
            return None
        edits.append(after_line(program.source, statement.end_lineno, before + line))
    return edits or None


def import_statements(program: Program, bound: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file that bind a name."""
    return [
        node for node in ast.walk(program.tree) if isinstance(node, _BINDING) and any(bound_name(node, alias) == bound for alias in node.names)
    ]


def bound_name(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """The name that an import gives."""
    return alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])


def _bound(program: Program) -> set[str]:
    imported = {bound_name(node, alias) for node in ast.walk(program.tree) if isinstance(node, _BINDING) for alias in node.names}
    return imported | _assigned(program)


def _assigned(program: Program) -> set[str]:
    """Names that are bound otherwise than by imports (``None`` aside, the usual stand-in where an import fails)."""
    found: set[str] = set()
    for node in ast.walk(program.tree):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            parent = program.parents[node]
            if not (isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Constant) and parent.value.value is None):
                found.add(node.id)
    return found
