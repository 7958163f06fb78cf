"""For GitHub's workflow log: commands that become annotations of the lines."""

from __future__ import annotations

from surestep.lint.findings import Severity
from surestep.lint.output.report import Report

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def write(report: Report) -> str:
    """One command a finding."""
    lines = [
        f"::{_COMMANDS[finding.severity]} title={finding.code},file={_property(source.path)},line={source.place(finding.line)[1]},"
        f"col={finding.column},endLine={source.place(finding.end_line)[1]},endColumn={finding.end_column}::{_data(finding.message)}"
        for source, finding in report.findings
    ]
    lines += [f"::error file={_property(path)}::{_data(error)}" for path, error in report.errors]
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
