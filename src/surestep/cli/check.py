"""`surestep check`: reads files, prints what was found, and mends it where that was asked for."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

import click

from surestep.lint import discovery
from surestep.lint.engine import Checked, Selection, check_file
from surestep.lint.output import FORMATS, Report
from surestep.lint.output.text import statistics
from surestep.lint.rules import RULES


def check(
    paths: list[str],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    target: str | None,
    fix: bool,
    unsafe: bool,
    diff: bool,
    output: str,
    counts: bool,
    exit_zero: bool,
) -> int:
    """Checks paths; returns the exit code: 0 clean, 1 findings (with ``diff``: changes), 2 errors."""
    report, changed = Report(), False
    try:
        for path, selection in _files(paths, select, ignore, target):
            data = _read(path, report)
            if data is None:
                continue
            name = "<stdin>" if path == "-" else path
            checked = check_file(name, data, selection, fix or diff, unsafe)
            report.files += 1
            changed |= _after(path, data, checked, report, diff)
    except discovery.SettingsError as error:
        click.echo(f"surestep check: {error}", err=True)
        return 2
    if diff:
        for path, error in report.errors:
            click.echo(f"{path}: {error}", err=True)
        return 2 if report.errors else int(changed)
    if "-" in paths and fix:
        click.echo(FORMATS[output](report), err=True)
    else:
        click.echo(statistics(report) if counts else FORMATS[output](report))
    return 0 if exit_zero and report.exit_code == 1 else report.exit_code


def _files(paths: list[str], select: tuple[str, ...], ignore: tuple[str, ...], target: str | None) -> list[tuple[str, Selection]]:
    found: dict[str, Selection] = {}
    for path in paths:
        start = Path(os.path.abspath(path if path != "-" else "."))
        table = discovery.settings(start if start.is_dir() else start.parent)
        selection = Selection(_known(select or table.select or ("XLA",)), _known((*table.ignore, *ignore)), target or table.target)
        found.update(dict.fromkeys(discovery.files([path], table.exclude, table.root), selection))
    return list(found.items())


def _known(codes: tuple[str, ...]) -> tuple[str, ...]:
    for code in codes:
        if not any(known.startswith(code) for known in RULES):
            raise discovery.SettingsError(f"there is no rule {code!r}; docs/check.md lists them")
    return codes


def _read(path: str, report: Report) -> bytes | None:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        return Path(path).read_bytes()
    except OSError as error:
        report.errors.append((path, f"can't be read: {error.strerror}"))
        return None


def _after(path: str, data: bytes, checked: Checked, report: Report, diff: bool) -> bool:
    """Notes what was found, and writes or shows what was mended; whether there was anything."""
    if checked.error is not None or checked.source is None:
        report.errors.append(("<stdin>" if path == "-" else path, checked.error or ""))
        return False
    report.findings += [(checked.source, finding) for finding in checked.findings]
    report.fixed += checked.fixed
    if diff:
        if checked.fixed:
            click.echo(difference(checked.source.path, data, checked.source.encode(data)), nl=False)
    elif path == "-" and checked.fixed:
        sys.stdout.buffer.write(checked.source.encode(data))
    elif checked.fixed:
        try:
            Path(path).write_bytes(checked.source.encode(data))
        except OSError as error:
            report.errors.append((path, f"can't be written: {error.strerror}"))
    return bool(checked.fixed)


def difference(path: str, before: bytes, after: bytes) -> str:
    """A unified diff of a file's bytes."""
    old, new = (part.decode(errors="replace").splitlines(keepends=True) for part in (before, after))
    lines = difflib.unified_diff(old, new, path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
