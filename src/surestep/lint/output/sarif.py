"""SARIF 2.1.0, for code scanning: rules with their help, results with fixes, fingerprints that outlive inserted lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from typing import Any
from urllib.parse import quote

from surestep.lint.explain import documentation
from surestep.lint.findings import Finding, Severity
from surestep.lint.output.report import Report
from surestep.lint.rules import RULES
from surestep.lint.source import Source

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def write(report: Report) -> str:
    """One run."""
    codes = sorted({finding.code for _, finding in report.findings})
    seen: Counter[str] = Counter()
    results = []
    for source, finding in report.findings:
        fingerprint = _fingerprint(source, finding)
        seen[fingerprint] += 1
        results.append(_result(source, finding, codes.index(finding.code), f"{fingerprint}:{seen[fingerprint]}"))
    notes = [{"level": "error", "message": {"text": f"{path}: {error}"}} for path, error in report.errors]
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "surestep", "rules": [_rule(code) for code in codes]}},
        "invocations": [{"executionSuccessful": not report.errors, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"version": "2.1.0", "$schema": _SCHEMA, "runs": [run]}, indent=2)


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.name.replace("-", " ")},
        "fullDescription": {"text": " ".join((rule.__doc__ or "").split())},
        "help": {"text": documentation(rule), "markdown": documentation(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(source: Source, finding: Finding, index: int, fingerprint: str) -> dict[str, Any]:
    artifact = {"uri": quote(os.path.relpath(source.path).replace(os.sep, "/")), "uriBaseId": "%SRCROOT%"}
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": _region(source, finding)}}],
        "partialFingerprints": {"ruleAndLine/v1": fingerprint},
    }
    if finding.fix is not None and source.notebook is None:
        replacements = []
        for edit in finding.fix.edits:
            (line, column), (end_line, end_column) = source.position(edit.start), source.position(edit.end)
            deleted = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
            replacements.append({"deletedRegion": deleted, "insertedContent": {"text": edit.text}})
        result["fixes"] = [{"artifactChanges": [{"artifactLocation": artifact, "replacements": replacements}]}]
    return result


def _region(source: Source, finding: Finding) -> dict[str, int]:
    _, line = source.place(finding.line)
    _, end = source.place(finding.end_line)
    return {"startLine": line, "startColumn": finding.column, "endLine": end, "endColumn": finding.end_column}


def _fingerprint(source: Source, finding: Finding) -> str:
    """Of the rule, the path and the line's text, without its indentation: a line inserted above changes nothing."""
    text = "\0".join([finding.code, os.path.relpath(source.path), " ".join(source.lines[finding.line - 1].split())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
