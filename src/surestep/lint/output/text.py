"""For a terminal: one line a finding, in the form that editors and terminals make a link of."""

from __future__ import annotations

from surestep.lint.output.report import Report
from surestep.lint.source import Source


def where(source: Source, line: int, column: int) -> str:
    """``path:line:column``; of a notebook, the cell too."""
    cell, line = source.place(line)
    return f"{source.path}:{f'cell {cell}:' if cell else ''}{line}:{column}"


def write(report: Report) -> str:
    """The findings, then a summary."""
    lines = [
        f"{where(source, finding.line, finding.column)}: {finding.code}{_star(finding.fix)} {finding.severity}: {finding.message}"
        for source, finding in report.findings
    ]
    lines += [f"{path}: {error}" for path, error in report.errors]
    return "\n".join([*lines, summary(report)])


def summary(report: Report) -> str:
    """What was found, and what `--fix` could do about it."""
    checked = f"{report.files} file{'s' if report.files != 1 else ''} checked"
    if not report.findings and not report.errors:
        return f"Nothing found; {checked}" + (f", {report.fixed} fixed" if report.fixed else "") + "."
    parts = [f"{len(report.findings)} found", checked]
    if report.fixed:
        parts.append(f"{report.fixed} fixed")
    if report.errors:
        parts.append(f"{len(report.errors)} couldn't be checked")
    safe = sum(finding.fix is not None and finding.fix.safe for _, finding in report.findings)
    unsafe = sum(finding.fix is not None and not finding.fix.safe for _, finding in report.findings)
    hint = [f"{safe} with --fix"] * bool(safe) + [f"{unsafe} more with --unsafe-fixes"] * bool(unsafe)
    return ", ".join(parts) + "." + (f" Fixable [*]: {', '.join(hint)}." if hint else "")


def statistics(report: Report) -> str:
    """How often each rule was broken, most often first."""
    from collections import Counter

    from surestep.lint.rules import RULES

    counted = Counter(finding.code for _, finding in report.findings)
    return "\n".join(
        f"{count:5d}  {code}  {RULES[code].name}" for code, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    )


def _star(fix: object) -> str:
    return " [*]" if fix is not None else ""
