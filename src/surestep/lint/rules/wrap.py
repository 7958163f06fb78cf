"""A loop's body put into ``with torch_xla.step():``."""

from __future__ import annotations

import ast
from itertools import pairwise

from surestep.lint.edits import first_line, indent
from surestep.lint.findings import Edit, Fix
from surestep.lint.program import Program


def wrap_in_step(program: Program, loop: ast.AST) -> Fix | None:
    """The fix for a ``for`` or ``while`` whose body is on lines of its own. None where a statement leaves the loop's body half-way."""
    if not isinstance(loop, ast.For | ast.While) or loop.body[0].lineno == loop.lineno or not may_wrap(loop.body):
        return None
    edits = wrapped(program, loop.body, "torch_xla.step()")
    return Fix(tuple(edits), False, ("torch_xla",)) if edits else None


def may_wrap(body: list[ast.stmt]) -> bool:
    """Whether the statements can be a block of their own: they share no lines with others."""
    lines = [(first_line(statement), statement.end_lineno) for statement in body]
    return all(end is not None and end < start for (_, end), (start, _) in pairwise(lines))


def wrapped(program: Program, statements: list[ast.stmt], context: str) -> list[Edit]:
    """Statements as the body of ``with context:``; none if lines are shared."""
    source = program.source
    first = first_line(statements[0])
    start = source.starts[first - 1]
    line = source.lines[first - 1]
    margin = line[: len(line) - len(line.lstrip())]
    outer = program.parents[statements[0]]
    width = statements[0].col_offset - getattr(outer, "col_offset", 0)
    by = margin[-width:] if 0 < width <= len(margin) else "    "
    if source.offset(statements[0].lineno, statements[0].col_offset) - source.starts[statements[0].lineno - 1] != len(margin):
        return []
    end_of_line = "\r\n" if source.text.endswith("\r\n") else "\n"
    opening = Edit(start, start, f"{margin}with {context}:{end_of_line}{by}")
    return [opening, *(edit for edit in indent(source, statements, by) if edit.start != start)]
