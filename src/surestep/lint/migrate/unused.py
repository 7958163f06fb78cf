"""Imports that nothing uses any more, and those that several rewritten names have brought in several times."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.lint.edits import delete_statement, replace
from surestep.lint.findings import Fix
from surestep.lint.program import Program

# Importing these does something by itself.
_FOR_EFFECT = ("torch_xla.distributed.xla_backend", "torch_xla.experimental.pjrt_backend")


def unused(program: Program) -> set[str]:
    """The names that imports give and nothing speaks of. A name in ``__all__`` is spoken of, and one in a notebook's magics."""
    used = {node.id for node in ast.walk(program.tree) if isinstance(node, ast.Name)}
    used |= {node.value for node in ast.walk(program.tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    used |= set(re.findall(r"\w+", program.source.masked))
    return {name for name, _ in program.imports} - used


def unused_imports(program: Program, before: set[str]) -> Iterator[Fix | None]:
    """Names from torch_xla that nothing uses any more, and something did before. A package's ``__init__`` hands names on."""
    if program.source.path.endswith("__init__.py"):
        return
    gone_names = unused(program) - before
    for node in ast.walk(program.tree):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "level", 0):
            continue
        gone = [alias for alias in node.names if _is_gone(node, alias, module, gone_names)]
        if len(gone) == len(node.names):
            deleted = delete_statement(program, node)
            yield None if deleted is None else Fix((deleted,), safe=True)
        elif gone:
            yield Fix((replace(program.source, node, _without(node, gone)),), safe=True)


def repeated_imports(program: Program) -> Iterator[Fix | None]:
    """The second of two imports that are the same, in one block of statements."""
    for parent in ast.walk(program.tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            seen: set[str] = set()
            for node in block if isinstance(block, list) else ():
                if (
                    isinstance(node, ast.Import)
                    and len(node.names) == 1
                    and node.names[0].name.partition(".")[0] in ("torch_xla", "surestep")
                ):
                    text = ast.unparse(node)
                    deleted = delete_statement(program, node) if text in seen else None
                    yield None if deleted is None else Fix((deleted,), safe=True)
                    seen.add(text)


def _is_gone(node: ast.Import | ast.ImportFrom, alias: ast.alias, module: str, names: set[str]) -> bool:
    full = f"{module}.{alias.name}" if module else alias.name
    return full.partition(".")[0] == "torch_xla" and full not in _FOR_EFFECT and alias.name != "*" and _bound(node, alias) in names


def _bound(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])


def _without(node: ast.Import | ast.ImportFrom, gone: list[ast.alias]) -> str:
    kept = ", ".join(ast.unparse(alias) for alias in node.names if alias not in gone)
    return f"from {node.module} import {kept}" if isinstance(node, ast.ImportFrom) else f"import {kept}"
