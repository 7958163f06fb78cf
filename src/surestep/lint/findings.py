"""A finding, and the edits that mend it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How bad it is. Notes don't change the exit code."""

    ERROR = "error"  # wrong results, a crash or a hang
    WARNING = "warning"  # slow, or wrong under conditions that can't be seen here
    NOTE = "note"  # harmless, or a matter of style


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to put in the place of ``source[start:end]`` (character offsets).

    Of a block of statements, one is taken away at a time, so that it doesn't end up empty: ``block`` is the line where such a block begins.
    """

    start: int
    end: int
    text: str
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that belong together. A safe one keeps what the program means."""

    edits: tuple[Edit, ...]
    safe: bool = False
    imports: tuple[str, ...] = ()  # modules that the new text names


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a rule doesn't hold. Lines and columns count from 1."""

    code: str
    severity: Severity
    message: str
    line: int
    column: int
    end_line: int
    end_column: int
    fix: Fix | None = None
