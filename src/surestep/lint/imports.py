"""Imports that new text needs, and where they go."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from surestep.lint.edits import first_line
from surestep.lint.findings import Edit
from surestep.lint.program import Program


def import_edits(program: Program, modules: Iterable[str]) -> list[Edit]:
    """``import module`` for each that isn't imported at module level already, after the last import at the top of the file."""
    missing = [module for module in dict.fromkeys(modules) if not is_imported(program, module)]
    if not missing:
        return []
    offset, margin = _place(program)
    end = "\r\n" if "\r\n" in program.source.text else "\n"
    text = "".join(f"{margin}import {module}{end}" for module in missing)
    if offset and program.source.text[offset - 1] not in "\r\n":
        text = end + text.removesuffix(end)
    return [Edit(offset, offset, text)]


def is_imported(program: Program, module: str) -> bool:
    """Whether ``module`` can be written in full at module level, since an unconditional import binds its first name."""
    return any(
        isinstance(node, ast.Import)
        and any(alias.name == module and alias.asname is None or (alias.name.startswith(f"{module}.") and alias.asname is None) for alias in node.names)
        for node in program.tree.body
    )


def _place(program: Program) -> tuple[int, str]:
    """After the last of the statements that begin the file and are its docstring or imports; in a notebook, in the first cell with an import."""
    source = program.source
    last: ast.stmt | None = None
    for node in program.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node
        elif not is_docstring and last is not None:
            break
        elif is_docstring and last is None and node is program.tree.body[0] and source.notebook is None:
            last = node
    if last is None:
        first = program.tree.body[0] if program.tree.body else None
        return (source.starts[first_line(first) - 1] if first is not None else 0), ""
    assert last.end_lineno is not None
    after = source.starts[last.end_lineno] if last.end_lineno < len(source.starts) else len(source.text)
    for _, start, end in source.cells:
        if start <= source.starts[last.lineno - 1] <= end < after:
            return end, ""
    return after, ""
