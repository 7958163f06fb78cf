"""Names that have new names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint import vocabulary
from surestep.lint.deprecated import MODULES, NAMES, STRINGS, Old
from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Edit, Fix
from surestep.lint.program import Program
from surestep.lint.references import references
from surestep.lint.rename import named_edits, renamed

_XM = vocabulary.XM

# What is surestep's own, with the same arguments.
SURESTEP = {
    **{
        f"torch_xla.{name}": f"surestep.{name}"
        for name in ["device", "devices", "device_count", "real_devices", "manual_seed", "sync", "step", "compile", "launch"]
    },
    f"{_XM}.optimizer_step": "surestep.optimizer_step",
    f"{_XM}.save": "surestep.save",
    f"{_XM}.add_step_closure": "surestep.add_step_closure",
    f"{vocabulary.PL}.MpDeviceLoader": "surestep.MpDeviceLoader",
    "torch_xla.debug.metrics.clear_all": "surestep.clear_metrics",
}


def to_modern(program: Program) -> Iterator[Fix | None]:
    """torch_xla's old names to its modern ones."""
    for reference in references(program):
        if (old := NAMES.get(reference.name)) is not None:
            yield renamed(program, reference, old)


def to_surestep(program: Program) -> Iterator[Fix | None]:
    """torch_xla's names to surestep's own."""
    for reference in references(program):
        if (new := SURESTEP.get(reference.name)) is not None:
            yield renamed(program, reference, Old("", "", new=new))


def modules(program: Program) -> Iterator[Fix | None]:
    """Imports of a module that has moved. It keeps the name that the file has for it."""
    for reference in references(program):
        old = MODULES.get(reference.name)
        if old is None or old.new is None or reference.alias is None or not isinstance(reference.node, ast.Import | ast.ImportFrom):
            continue
        alias, node = reference.alias, reference.node
        if len(node.names) != 1:
            continue
        if isinstance(node, ast.ImportFrom):
            parent, _, last = old.new.rpartition(".")
            name = alias.asname or alias.name
            text = f"from {parent} import {last}" + (f" as {name}" if name != last else "")
        elif alias.asname:
            text = f"import {old.new} as {alias.asname}"
        elif any(reference.name in (found or "") for found in program.resolved.values()):
            continue  # used in full elsewhere
        else:
            text = f"import {old.new}"
        yield Fix((replace(program.source, node, text),), safe=True)


def strings(program: Program) -> Iterator[Fix | None]:
    """``init_method="pjrt://"``."""
    for call in program.calls:
        if call.name == "torch.distributed.init_process_group":
            for node in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and (old := STRINGS.get(node.value)) and old.new:
                    yield Fix((replace(program.source, node, text_of(program.source, node).replace(node.value, old.new)),), safe=True)


def master_print(program: Program) -> Iterator[Fix | None]:
    """``xm.master_print``: one process is the master."""
    for call in program.calls:
        if call.name == f"{_XM}.master_print" and not {keyword.arg for keyword in call.node.keywords} - {"flush"}:
            yield Fix((replace(program.source, call.node.func, "print"),), safe=True)


def metrics_report(program: Program) -> Iterator[Fix | None]:
    """``print(met.metrics_report())``: surestep's metrics are a table when they are printed."""
    for call in program.calls:
        parent = program.parents.get(call.node)
        if (
            call.name != "torch_xla.debug.metrics.metrics_report"
            or not isinstance(parent, ast.Call)
            or call.node.args
            or call.node.keywords
        ):
            continue
        if isinstance(parent.func, ast.Name) and parent.func.id == "print":
            named: list[Edit] | None = named_edits(program, call.node.func, "surestep.metrics")
            yield None if named is None else Fix(tuple(named), safe=True)
