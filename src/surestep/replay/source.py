"""The syntax tree of a function: what was compiled, not what the file says by now."""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType
from typing import NamedTuple

from surestep.replay.values import NotReplayable

Definition = ast.FunctionDef | ast.Lambda


class _File(NamedTuple):
    definitions: dict[tuple[int, str], list[Definition]]  # by first line and name
    code: dict[tuple[int, str], list[CodeType]]


def definition(code: CodeType) -> Definition:
    """The tree of the function with this code.

    Raises ``NotReplayable`` where its source isn't to be had, or is another one now: the tree is compiled again and must give this code.
    """
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise NotReplayable(f"the source of {code.co_name} can't be read", code.co_filename, code.co_firstlineno)
    file = _parsed(code.co_filename, "".join(lines))
    key = (code.co_firstlineno, code.co_name)
    if code not in file.code.get(key, ()):
        raise NotReplayable(
            f"the source of {code.co_name} is not what was compiled: it was edited since, or rewritten on import",
            code.co_filename,
            code.co_firstlineno,
        )
    found = file.definitions.get(key, [])
    around = [node for node in found if _contains(node, code)] if len(found) > 1 else found
    if not around:
        raise NotReplayable(f"there is more than one {code.co_name} on this line", code.co_filename, code.co_firstlineno)
    return max(around, key=lambda node: (node.lineno, node.col_offset))  # the innermost


def _contains(node: Definition, code: CodeType) -> bool:
    """Whether all instructions come from inside a node: so lambdas on one line are told apart."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    places = [(line, column, last, after) for line, last, column, after in code.co_positions() if line and last and after]
    return all(begin <= (line, column or 0) and (last, after) <= end for line, column, last, after in places)


@functools.lru_cache(256)
def _parsed(filename: str, source: str) -> _File:
    try:
        tree = ast.parse(source, filename)
        whole = compile(source, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NotReplayable(f"the source can't be parsed: {error}", filename, error.lineno or 0) from error
    definitions: dict[tuple[int, str], list[Definition]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            definitions.setdefault((first, node.name), []).append(node)
        elif isinstance(node, ast.Lambda):
            definitions.setdefault((node.lineno, "<lambda>"), []).append(node)
    code: dict[tuple[int, str], list[CodeType]] = {}
    _collect(whole, code)
    return _File(definitions, code)


def _collect(code: CodeType, found: dict[tuple[int, str], list[CodeType]]) -> None:
    found.setdefault((code.co_firstlineno, code.co_name), []).append(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _collect(constant, found)
