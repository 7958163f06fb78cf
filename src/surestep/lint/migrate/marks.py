"""Comments at what a migration had to leave: the rule's code, and what to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint.deprecated import MODULES, NAMES, STRINGS
from surestep.lint.edits import first_line, margin
from surestep.lint.findings import Edit
from surestep.lint.program import Program
from surestep.lint.references import references

_LEFT = "# migrate: "


def marks(program: Program, target: str) -> Iterator[Edit]:
    """A line above each statement that still has an old name (for surestep: one of torch_xla), unless it is there already."""
    done: set[tuple[int, str]] = set()
    for node, text in _left(program, target):
        statement = _own_line(program, program.statement(node))
        if statement is None:
            continue
        line = first_line(statement)
        before = program.source.lines[line - 2].strip() if line > 1 else ""
        comment = f"{_LEFT}{text}"
        if (line, comment) in done or comment in _comments_above(program, line) or before.endswith("\\"):
            continue
        done.add((line, comment))
        start = program.source.starts[line - 1]
        end = "\r\n" if "\r\n" in program.source.text else "\n"
        yield Edit(start, start, f"{margin(program.source, statement)}{comment}{end}")


def _left(program: Program, target: str) -> Iterator[tuple[ast.AST, str]]:
    needed: set[str] = set()
    for reference in references(program):
        table = NAMES if reference.alias is None else NAMES | MODULES
        old = table.get(reference.name)
        if old is not None:
            yield reference.node, f"{'XLA902' if old.removed else 'XLA901'} {reference.name}: {old.say}"
        elif (
            target == "surestep"
            and reference.alias is None
            and reference.name not in needed
            and isinstance(program.parents[reference.node], ast.Call)
        ):
            needed.add(reference.name)  # that it needs `surestep run` is said once
            yield reference.node, f"XLA904 {reference.name} isn't surestep's own: it needs `surestep run`."
    for call in program.calls:
        for value in (*call.arguments, *call.keywords.values()):
            if call.name == "torch.distributed.init_process_group" and value.text in STRINGS:
                yield call.node, f"XLA902 {value.text}: {STRINGS[value.text].say}"


def _own_line(program: Program, statement: ast.stmt) -> ast.stmt | None:
    """The statement, or the one around it that begins a line."""
    while margin(program.source, statement) is None:
        parent = program.parents[statement]
        if not isinstance(parent, ast.stmt):
            return None
        statement = parent
    return statement


def _comments_above(program: Program, line: int) -> list[str]:
    found = []
    for number in range(line - 1, 0, -1):
        text = program.source.lines[number - 1].strip()
        if not text.startswith("#"):
            break
        found.append(text)
    return found
