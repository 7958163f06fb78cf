"""A function's parameters, bound to the values of a call."""

from __future__ import annotations

import ast
from typing import Any

from surestep.replay.values import New, Value


def bound(
    walk: Any,
    frame: Any,
    node: ast.FunctionDef | ast.Lambda,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: list[Value],
    named: dict[str, Value],
) -> dict[str, Value]:
    """The parameters' values, as Python binds them."""
    wanted = node.args
    positional = [argument.arg for argument in (*wanted.posonlyargs, *wanted.args)]
    names: dict[str, Value] = dict(zip(positional, args, strict=False))
    extra = args[len(positional) :]
    if extra and wanted.vararg is None:
        raise walk.refuse(frame, node, "a function gets too many arguments")
    if wanted.vararg is not None:
        names[wanted.vararg.arg] = New(tuple, list(extra))
    rest = dict(kwargs)
    for name in (*positional, *(argument.arg for argument in wanted.kwonlyargs)):
        if name in rest:
            names[name] = rest.pop(name)
    if rest and wanted.kwarg is None:
        raise walk.refuse(frame, node, f"a function gets an unknown argument {next(iter(rest))!r}")
    if wanted.kwarg is not None:
        names[wanted.kwarg.arg] = New(dict, rest)
    for name, value in zip(reversed(positional), reversed(defaults), strict=False):
        names.setdefault(name, value)
    for name, value in named.items():
        names.setdefault(name, value)
    missing = [name for name in (*positional, *(argument.arg for argument in wanted.kwonlyargs)) if name not in names]
    if missing:
        raise walk.refuse(frame, node, f"a function misses its argument {missing[0]!r}")
    return names
