"""How findings are written, one format a file."""

from collections.abc import Callable

from surestep.lint.output import github, json, sarif, text
from surestep.lint.output.report import Report

FORMATS: dict[str, Callable[[Report], str]] = {"text": text.write, "json": json.write, "github": github.write, "sarif": sarif.write}

__all__ = ["FORMATS", "Report"]
