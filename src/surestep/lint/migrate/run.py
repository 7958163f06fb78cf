"""The passes of a migration, one after the other, each on the text that the one before has left, until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from surestep.lint.edits import edited, overlap
from surestep.lint.engine import concerns, parse
from surestep.lint.findings import Edit, Fix
from surestep.lint.migrate import amp, launch, loader, loops, marks, names, unused
from surestep.lint.program import Program
from surestep.lint.source import Source

Pass = Callable[[Program], Iterable[Fix | None]]

_TORCH_XLA: tuple[Pass, ...] = (
    loops.mark_step_to_step,
    launch.spawn_to_launch,
    loader.parallel_loader,
    amp.to_torch,
    names.modules,
    names.strings,
    names.to_modern,
)
_SURESTEP: tuple[Pass, ...] = (*_TORCH_XLA, names.master_print, names.metrics_report, names.to_surestep)
_ROUNDS = 50  # each round rewrites what doesn't touch the same text


@dataclass(frozen=True, slots=True)
class Migrated:
    """A file after its migration: how many places were rewritten, and how many were left with a mark."""

    source: Source
    changes: int
    marks: int


def migrate(source: Source, target: str = "torch_xla") -> Migrated:
    """The migrated file.

    Raises:
        SourceError: The file can't be parsed.
    """
    if not concerns(source.text):
        return Migrated(source, 0, 0)
    changes, program = 0, parse(source)
    before, changed = unused.unused(program), True
    while changed:  # an import that one pass adds may be what another waits for
        count_before = changes
        for one in _SURESTEP if target == "surestep" else _TORCH_XLA:
            program, count = _until_done(program, one)
            changes += count
        changed = changes > count_before
    if changes:
        program, _ = _until_done(program, lambda program: unused.unused_imports(program, before))
        program, _ = _until_done(program, unused.repeated_imports)
    marked = list(marks.marks(program, target))
    return Migrated(edited(program.source, marked) if marked else program.source, changes, len(marked))


def _until_done(program: Program, one: Pass) -> tuple[Program, int]:
    """A pass, again and again while it finds something."""
    changes = 0
    for _ in range(_ROUNDS):
        edits: list[Edit] = []
        for fix in one(program):
            if fix is None:
                continue
            new = [edit for edit in fix.edits if edit not in edits]
            if not overlap(new, edits):
                edits += new
                changes += 1
        if not edits:
            break
        program = parse(edited(program.source, edits))
    return program, changes
