"""`surestep migrate`: shows or writes what torch_xla's old names become."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from surestep.cli.check import difference
from surestep.lint import discovery
from surestep.lint.migrate import migrate as migrated
from surestep.lint.source import Source, SourceError


def migrate(paths: list[str], target: str, write: bool) -> int:
    """Migrates paths; returns the exit code: 0 nothing to change or written, 1 changes shown and not written, 2 errors."""
    errors = changed = marked = 0
    for path in _files(paths):
        try:
            before = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            result = migrated(Source.read("<stdin>" if path == "-" else path, before), target)
        except (OSError, SourceError) as error:
            click.echo(f"{path}: {error.strerror if isinstance(error, OSError) else error}", err=True)
            errors += 1
            continue
        after = result.source.encode(before) if result.changes or result.marks else before
        changed += after != before
        marked += result.marks
        if write and path != "-":
            if after != before and not _write(path, after):
                errors += 1
        elif write:
            sys.stdout.buffer.write(after)
        else:
            click.echo(difference(path, before, after), nl=False)
    verb = "rewritten" if write else "to rewrite (--write does it)"
    click.echo(
        f"{changed} file{'s' if changed != 1 else ''} {verb}, {marked} place{'s' if marked != 1 else ''} left with a comment.", err=True
    )
    return 2 if errors else int(bool(changed) and not write)


def _write(path: str, data: bytes) -> bool:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        click.echo(f"{path}: can't be written: {error.strerror}", err=True)
        return False
    return True


def _files(paths: list[str]) -> list[str]:
    found: dict[str, None] = {}
    for path in paths:
        start = Path(os.path.abspath(path if path != "-" else "."))
        table = discovery.settings(start if start.is_dir() else start.parent)
        found.update(dict.fromkeys(discovery.files([path], table.exclude, table.root)))
    return list(found)
