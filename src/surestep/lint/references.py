"""Every place of a file that names something of torch_xla, by whatever import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from surestep.lint.program import Program


@dataclass(frozen=True, slots=True)
class Reference:
    """A place that names something: an expression, or the statement that imports it."""

    name: str  # qualified
    node: ast.expr | ast.Import | ast.ImportFrom
    alias: ast.alias | None = None  # in an import


def references(program: Program) -> Iterator[Reference]:
    """Names in expressions, in the order of the text, and what is imported by name."""
    found: list[Reference] = []
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Import):
            found += [Reference(alias.name, node, alias) for alias in node.names if alias.name.startswith("torch_xla")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_xla") and not node.level:
            found += [Reference(f"{node.module}.{alias.name}", node, alias) for alias in node.names]
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = program.resolved.get(node)
            if name is not None and name.startswith("torch_xla"):
                found.append(Reference(name, node))
    found.sort(key=lambda reference: (reference.node.lineno, reference.node.col_offset))
    return iter(found)
