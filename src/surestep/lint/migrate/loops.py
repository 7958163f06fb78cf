"""``mark_step`` at the end of a loop's body to ``with torch_xla.step():`` around it, where that is provably the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint import vocabulary as names
from surestep.lint.edits import delete_statement
from surestep.lint.findings import Fix
from surestep.lint.imports import beside, spelled
from surestep.lint.program import Call, Program, advances, is_boundary, is_step_block, makes_boundaries
from surestep.lint.rename import root
from surestep.lint.rules.wrap import may_wrap, wrapped

_LEAVES = (ast.Continue, ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


def mark_step_to_step(program: Program) -> Iterator[Fix | None]:
    """Training loops whose body ends in ``xm.mark_step()``, which is their only boundary, and whose body is always run to its end."""
    training = {loop.frame: loop for loop in program.training_loops}
    for call in program.calls:
        if call.name != f"{names.XM}.mark_step" or call.node.args or call.node.keywords or not call.frames:
            continue
        loop = training.get(call.frames[-1])
        if loop is not None and isinstance(loop.frame.node, ast.For | ast.While) and _is_same(program, call, loop.frame.node):
            inside = [event for event in program.inside(loop.frame, loop.function) if isinstance(event, Call)]
            alone = sum(map(is_boundary, inside)) == 1 and not any(is_step_block(frame) for event in inside for frame in event.frames)
            if alone and not makes_boundaries(loop.frame) and not any(map(advances, inside)):
                yield _wrapped(program, call, loop.frame.node)


def _is_same(program: Program, call: Call, loop: ast.For | ast.While) -> bool:
    *body, last = loop.body
    ends = isinstance(last, ast.Expr) and last.value is call.node
    leaves = any(isinstance(node, _LEAVES) for statement in body for node in ast.walk(statement))
    return ends and bool(body) and not leaves and may_wrap(loop.body) and body[0].lineno > loop.lineno


def _wrapped(program: Program, call: Call, loop: ast.For | ast.While) -> Fix | None:
    text, line = spelled(program, "torch_xla.step")
    imports = beside(program, root(call.node.func), line) if line is not None else []
    edits = wrapped(program, loop.body[:-1], f"{text}()")
    deleted = delete_statement(program, loop.body[-1])
    if imports is None or not edits or deleted is None:
        return None
    return Fix((*edits, deleted, *imports), safe=True)
