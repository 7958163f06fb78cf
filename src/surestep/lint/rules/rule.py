"""What a rule is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from surestep.lint.findings import Edit, Finding, Fix, Severity
from surestep.lint.program import Program

Found = Iterator[Finding]


class Rule:
    """A rule: its docstring says what happens and why, its examples are its tests and its page in the documentation."""

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = Severity.WARNING
    surestep: ClassVar[str | None] = None  # why it is harmless where the script runs under surestep; None: it isn't
    only: ClassVar[str | None] = None  # the one target that it is asked for
    valid: ClassVar[tuple[str, ...]] = ()
    invalid: ClassVar[tuple[str, ...]] = ()

    def __init__(self, target: str = "torch_xla"):
        self.target = target

    def check(self, program: Program) -> Found:
        """The places where the rule doesn't hold."""
        raise NotImplementedError

    def found(
        self, program: Program, node: ast.expr | ast.stmt, message: str, fix: Fix | None = None, severity: Severity | None = None
    ) -> Finding:
        """A finding at a node; a note where surestep makes it harmless."""
        severity = severity or self.severity
        if self.target == "surestep" and self.surestep is not None:
            severity, message = Severity.NOTE, f"{message} Under surestep: {self.surestep}"
        assert node.end_lineno is not None and node.end_col_offset is not None
        source = program.source
        start = source.offset(node.lineno, node.col_offset)
        end = source.offset(node.end_lineno, node.end_col_offset)
        return Finding(self.code, severity, message, *source.position(start), *source.position(end), fix)


def fix(*edits: Edit | None, safe: bool = False, imports: tuple[str, ...] = ()) -> Fix | None:
    """A fix of these edits; none if one of them couldn't be made."""
    made = tuple(edit for edit in edits if edit is not None)
    return Fix(made, safe, imports) if len(made) == len(edits) else None
