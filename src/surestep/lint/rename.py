"""A reference to an old name, rewritten to the new one."""

from __future__ import annotations

import ast

from surestep.lint.deprecated import Old
from surestep.lint.edits import remove_argument, replace, text_of
from surestep.lint.findings import Edit, Fix
from surestep.lint.imports import beside, spelled
from surestep.lint.program import Program
from surestep.lint.references import Reference


def renamed(program: Program, reference: Reference, old: Old) -> Fix | None:
    """The same call by its new name, imported where the old one was. None if its arguments, or the imports, leave doubt."""
    if old.new is None or reference.alias is not None or not isinstance(reference.node, ast.expr):
        return None
    arguments = _arguments(program, reference.node, old)
    if arguments is None:
        return None
    named = named_edits(program, reference.node, old.new)
    return None if named is None else Fix((*named, *arguments), safe=True)


def named_edits(program: Program, node: ast.expr, new: str) -> list[Edit] | None:
    """Another qualified name in an expression's place, and the imports that it needs."""
    if "".join(text_of(program.source, node).split()) != ast.unparse(node):
        return None  # Python 3.11 doesn't know where everything in a nested f-string is
    text, line = spelled(program, new)
    edits = [replace(program.source, node, text)]
    if line is not None:
        imports = beside(program, root(node), line)
        if imports is None:
            return None
        edits += imports
    return edits


def root(node: ast.expr) -> str:
    """The first name of a dotted one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _arguments(program: Program, node: ast.expr, old: Old) -> list[Edit] | None:
    """The call without the arguments that are gone; None if it can't be seen which are given."""
    if not old.without:
        return []
    call = program.parents[node]
    if not isinstance(call, ast.Call) or call.func is not node:
        return []  # handed on as a function: called with what the new one takes, as far as can be seen
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return None
    gone: list[ast.expr | ast.keyword] = [keyword for keyword in call.keywords if keyword.arg in old.without]
    gone += call.args[1:] if old.without == ("devkind",) else call.args
    if len(gone) > 1:
        return None
    return [remove_argument(program.source, call, argument) for argument in gone]
