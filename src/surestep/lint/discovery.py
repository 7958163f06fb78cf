"""Which files are checked, and with which settings."""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SUFFIXES = (".py", ".pyi", ".ipynb")
_SKIPPED = frozenset(
    [
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "venv",
        ".tox",
        ".nox",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        "__pycache__",
        "node_modules",
        "build",
        "dist",
        "site-packages",
        ".ipynb_checkpoints",
        ".eggs",
    ]
)
_KEYS = frozenset(["select", "ignore", "target", "exclude"])


class SettingsError(Exception):
    """What is wrong with a ``[tool.surestep.check]``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``[tool.surestep.check]`` of the nearest pyproject.toml."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    target: str | None = None
    exclude: tuple[str, ...] = ()
    root: Path = Path()


def settings(start: Path) -> Settings:
    """The settings for what lies at a path, from the nearest pyproject.toml upwards that has the table.

    Raises:
        SettingsError: The file can't be read, or has a key that there isn't.
    """
    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            table: Any = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error
        for key in ("tool", "surestep", "check"):
            table = table.get(key) if isinstance(table, dict) else None
        if table is not None:
            return _read(path, table)
    return Settings()


def _read(path: Path, table: Any) -> Settings:
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: [tool.surestep.check] is a table, not {table!r}")
    if unknown := table.keys() - _KEYS:
        raise SettingsError(f"{path}: [tool.surestep.check] has no {sorted(unknown)[0]!r}; it has {', '.join(sorted(_KEYS))}")
    lists = {key: table[key] for key in ("select", "ignore", "exclude") if key in table}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise SettingsError(f"{path}: [tool.surestep.check] {key} is a list of strings")
    target = table.get("target")
    if target not in (None, "torch_xla", "surestep"):
        raise SettingsError(f"{path}: [tool.surestep.check] target is 'torch_xla' or 'surestep', not {target!r}")
    return Settings(
        tuple(lists["select"]) if "select" in lists else None,
        tuple(lists.get("ignore", ())),
        target,
        tuple(lists.get("exclude", ())),
        path.parent,
    )


def files(paths: list[str], exclude: tuple[str, ...] = (), root: Path = Path()) -> Iterator[str]:
    """Python files and notebooks below directories, in order; a file that is named is taken whatever its name."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for directory, names, found in os.walk(path):
            names[:] = sorted(
                name for name in names if name not in _SKIPPED and not _excluded(os.path.join(directory, name), exclude, root)
            )
            for name in sorted(found):
                full = os.path.join(directory, name)
                if name.endswith(_SUFFIXES) and not _excluded(full, exclude, root):
                    yield full


def _excluded(path: str, patterns: tuple[str, ...], root: Path) -> bool:
    if not patterns:
        return False
    relative = os.path.relpath(path, root)
    return any(fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(os.path.basename(path), pattern) for pattern in patterns)
