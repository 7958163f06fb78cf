"""Starting processes: ``xmp.spawn`` to ``torch_xla.launch``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint import vocabulary as names
from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Fix
from surestep.lint.program import Call, Program
from surestep.lint.rename import named_edits

_SPAWN = f"{names.XMP}.spawn"
_PARAMETERS = ("fn", "args", "nprocs", "join", "daemon", "start_method")


def spawn_to_launch(program: Program) -> Iterator[Fix | None]:
    """``spawn(fn, args, nprocs=8)`` to ``launch(fn, args)``: the runtime says how many. A number of processes that is computed is left."""
    for call in program.calls:
        if call.name == _SPAWN or (call.name in names.TORCH_SPAWN and _is_for_xla(program, call)):
            yield _launched(program, call)


def _launched(program: Program, call: Call) -> Fix | None:
    given = _given(call.node)
    if given is None or "fn" not in given or not _is_constant(given.get("join"), True) or not _is_constant(given.get("daemon"), False):
        return None
    count = given.get("nprocs")
    if count is not None and not isinstance(count, ast.Constant):
        return None
    source = program.source
    arguments = [text_of(source, given["fn"])]
    if "args" in given:
        arguments.append(f"args={text_of(source, given['args'])}")
    if "start_method" in given:
        arguments.append(f"start_method={text_of(source, given['start_method'])}")
    if count is not None and count.value == 1:
        arguments.append("debug_single_process=True")
    named = named_edits(program, call.node.func, "torch_xla.launch")
    if named is None:
        return None
    function, *imports = named
    return Fix((replace(source, call.node, f"{function.text}({', '.join(arguments)})"), *imports), safe=True)


def _given(node: ast.Call) -> dict[str, ast.expr] | None:
    """The arguments by name; None if they can't be seen, or one isn't known."""
    if any(isinstance(argument, ast.Starred) for argument in node.args) or len(node.args) > len(_PARAMETERS):
        return None
    given = dict(zip(_PARAMETERS, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg not in _PARAMETERS:
            return None
        given[keyword.arg] = keyword.value
    return given


def _is_constant(node: ast.expr | None, value: bool) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is value)


def _is_for_xla(program: Program, call: Call) -> bool:
    """Whether the function that torch.multiprocessing starts makes an XLA device."""
    functions = [function for value in call.arguments[:1] for function in value.functions]
    return any(other.name in names.XLA_DEVICE for function in program.reach(functions) for other in function.calls)
