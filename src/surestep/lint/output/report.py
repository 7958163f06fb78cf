"""What is written: the findings of all files, and the files that couldn't be checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from surestep.lint.findings import Finding, Severity
from surestep.lint.source import Source


@dataclass
class Report:
    """The outcome for a list of paths."""

    findings: list[tuple[Source, Finding]] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)  # path, what is wrong
    files: int = 0
    fixed: int = 0

    @property
    def exit_code(self) -> int:
        """0 clean (notes are no fault), 1 findings, 2 files that couldn't be checked."""
        if self.errors:
            return 2
        return 1 if any(finding.severity is not Severity.NOTE for _, finding in self.findings) else 0
