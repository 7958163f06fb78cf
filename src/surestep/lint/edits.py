"""Edits of a file's text: made from nodes, and applied."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from surestep.lint.findings import Edit
from surestep.lint.program import Program
from surestep.lint.source import Source


def span(source: Source, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
    """Where a node's text begins and ends."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return source.offset(node.lineno, node.col_offset), source.offset(node.end_lineno, node.end_col_offset)


def text_of(source: Source, node: ast.expr | ast.stmt | ast.keyword) -> str:
    """A node as it is written."""
    start, end = span(source, node)
    return source.text[start:end]


def replace(source: Source, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
    """Another text for a node."""
    return Edit(*span(source, node), text)


def add_argument(source: Source, call: ast.Call, text: str) -> Edit:
    """One more argument at the end of a call."""
    _, end = span(source, call)
    last = max((span(source, part)[1] for part in (*call.args, *call.keywords)), default=None)
    if last is None:
        return Edit(end - 1, end - 1, text)
    return Edit(last, last, f", {text}")


def remove_argument(source: Source, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit:
    """A call without one of its arguments, and without the comma that goes with it."""
    parts = sorted(span(source, part) for part in (*call.args, *call.keywords))
    own = span(source, argument)
    index = parts.index(own)
    if index + 1 < len(parts):
        return Edit(own[0], parts[index + 1][0], "")
    if index:
        return Edit(parts[index - 1][1], own[1], "")
    trailing = re.match(r"\s*,", source.text[own[1] :])
    return Edit(own[0], own[1] + (trailing.end() if trailing else 0), "")


def delete_statement(program: Program, statement: ast.stmt) -> Edit | None:
    """A program without a statement: its lines, or ``pass`` where a block would be empty. None where it shares a line with others."""
    source = program.source
    start, end = span(source, statement)
    line_start = source.starts[statement.lineno - 1]
    rest = re.match(r"[ \t]*(#[^\n\r]*)?(\r\n|\r|\n|\Z)", source.python[end:])
    if source.python[line_start:start].strip() or rest is None:
        return None
    parent = program.parents[statement]
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    siblings = next(block for block in blocks if isinstance(block, list) and statement in block)
    if siblings == [statement] and parent is not program.tree:
        return Edit(start, end, "pass")
    block = None if parent is program.tree else siblings[0].lineno
    stop = end + rest.end()
    for _, begin, last in source.cells:
        if begin <= line_start <= last < stop:  # the last line of a notebook's cell takes the line break before it
            return Edit(max(begin, line_start - 1), last, "", block)
    return Edit(line_start, stop, "", block)


def after_line(source: Source, line: int, text: str) -> Edit:
    """A line of text behind another."""
    end = source.starts[line - 1] + len(source.lines[line - 1])
    return Edit(end, end, ("\r\n" if "\r\n" in source.text else "\n") + text)


def margin(source: Source, node: ast.stmt) -> str | None:
    """The white space before a statement; None if something else is on the line before it."""
    before = source.lines[first_line(node) - 1][: source.offset(node.lineno, node.col_offset) - source.starts[node.lineno - 1]]
    return None if before.strip() else before


def indent(source: Source, statements: list[ast.stmt], by: str) -> list[Edit]:
    """Statements one level deeper; lines inside of strings stay as they are."""
    inside: set[int] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
                assert node.end_lineno is not None
                inside.update(range(node.lineno + 1, node.end_lineno + 1))
    last = statements[-1].end_lineno
    assert last is not None
    lines = (line for line in range(first_line(statements[0]), last + 1) if line not in inside and source.lines[line - 1].strip())
    return [Edit(source.starts[line - 1], source.starts[line - 1], by) for line in lines]


def first_line(statement: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that don't overlap."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def overlap(edits: Iterable[Edit], others: Iterable[Edit]) -> bool:
    """Whether some of the edits touch the same text."""
    taken = list(others)
    return any(_touch(edit, other) for edit in edits for other in taken)


def _touch(one: Edit, other: Edit) -> bool:
    same_block = one.block is not None and one.block == other.block
    return same_block or one.start == other.start or (one.start < other.end and other.start < one.end)


def edited(source: Source, edits: Iterable[Edit]) -> Source:
    """The file after edits; in a notebook, each cell keeps what is in it."""
    found = sorted(set(edits), key=lambda edit: (edit.start, edit.end))
    text = apply(source.text, found)
    ends = []
    for _, _, end in source.cells:
        ends.append(end + sum(len(edit.text) - (edit.end - edit.start) for edit in found if edit.start <= end and edit.end <= end))
    return source.with_text(text, ends)
