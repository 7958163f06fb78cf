"""For programs: one JSON array, with the edits of each fix."""

from __future__ import annotations

import json

from surestep.lint.findings import Fix
from surestep.lint.output.report import Report
from surestep.lint.rules import RULES
from surestep.lint.source import Source


def write(report: Report) -> str:
    """An object a finding; a file that couldn't be checked is one without a code."""
    found = []
    for source, finding in report.findings:
        cell, line = source.place(finding.line)
        _, end = source.place(finding.end_line)
        found.append(
            {
                "code": finding.code,
                "name": RULES[finding.code].name,
                "severity": str(finding.severity),
                "message": finding.message,
                "filename": source.path,
                "cell": cell,
                "location": {"row": line, "column": finding.column},
                "end_location": {"row": end, "column": finding.end_column},
                "fix": _fix(source, finding.fix),
            }
        )
    found += [{"code": None, "severity": "error", "message": error, "filename": path} for path, error in report.errors]
    return json.dumps(found, indent=2)


def _fix(source: Source, fix: Fix | None) -> dict | None:
    if fix is None:
        return None
    edits = []
    for edit in fix.edits:
        (line, column), (end_line, end_column) = source.position(edit.start), source.position(edit.end)
        _, row = source.place(line)
        _, end_row = source.place(end_line)
        edits.append(
            {"content": edit.text, "location": {"row": row, "column": column}, "end_location": {"row": end_row, "column": end_column}}
        )
    return {"applicability": "safe" if fix.safe else "unsafe", "edits": edits}
