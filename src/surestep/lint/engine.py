"""Checks a file: reads it, evaluates it, asks the rules, and mends what can be mended."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field, replace

from surestep.lint.edits import edited, overlap
from surestep.lint.evaluate import evaluate
from surestep.lint.findings import Edit, Finding
from surestep.lint.imports import import_edits
from surestep.lint.program import Program
from surestep.lint.rules import RULES, Rule
from surestep.lint.source import Source, SourceError

_MENTIONS = ("xla", "XLA", "surestep", "XRT_")
_PASSES = 50  # a fix may make room for another


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rules are asked, and for which target. Codes may be prefixes: XLA1 is all of XLA1xx."""

    select: tuple[str, ...] = ("XLA",)
    ignore: tuple[str, ...] = ()
    target: str | None = None  # None: what the file imports

    def has(self, code: str) -> bool:
        """Whether a rule is asked; the longer prefix decides."""
        chosen = max((len(prefix) for prefix in self.select if code.startswith(prefix)), default=0)
        refused = max((len(prefix) for prefix in self.ignore if code.startswith(prefix)), default=0)
        return chosen > refused


@dataclass
class Checked:
    """What came out for one file."""

    source: Source | None = None  # None: it can't be read
    findings: list[Finding] = field(default_factory=list)
    error: str | None = None
    fixed: int = 0


def concerns(text: str) -> bool:
    """Whether a file speaks of XLA at all. One that doesn't isn't parsed: most of a large folder."""
    return any(word in text for word in _MENTIONS)


def parse(source: Source) -> Program:
    """The evaluated program of a file.

    Raises:
        SourceError: It isn't Python that this interpreter reads.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own escapes and comparisons
            tree = ast.parse(source.python)
        return evaluate(source, tree)
    except SyntaxError as error:
        cell, line = source.place(min(error.lineno or 1, len(source.lines)))
        where = f"cell {cell}, line {line}" if cell else f"line {line}"
        raise SourceError(f"can't be parsed: {error.msg} ({where})") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; expressions nested by the thousand
        raise SourceError(f"can't be parsed: {error}") from error


def check(source: Source, selection: Selection) -> list[Finding]:
    """The findings of a file, in order of their lines.

    Raises:
        SourceError: It can't be parsed.
    """
    if not concerns(source.text):
        return []
    program = parse(source)
    target = selection.target or _target(program)
    try:
        found = [finding for rule in _asked(selection, target) for finding in rule(target).check(program)]
    except RecursionError as error:
        raise SourceError("can't be checked: an expression is nested too deeply") from error
    found = [finding for finding in dict.fromkeys(found) if not source.silenced(finding.line, finding.end_line, finding.code)]
    return sorted((_with_imports(program, finding) for finding in found), key=lambda f: (f.line, f.column, f.code))


def check_file(path: str, data: bytes, selection: Selection, fix: bool = False, unsafe: bool = False) -> Checked:
    """Checks a file's bytes; with ``fix``, mends what can be, until nothing is left to mend."""
    try:
        source = Source.read(path, data)
        checked = Checked(source, check(source, selection))
    except SourceError as error:
        return Checked(error=str(error))
    for _ in range(_PASSES if fix else 0):
        edits, count = _compatible(checked.findings, unsafe)
        if not edits:
            break
        assert checked.source is not None
        mended = edited(checked.source, edits)
        checked = Checked(mended, check(mended, selection), fixed=checked.fixed + count)
    return checked


def _asked(selection: Selection, target: str) -> list[type[Rule]]:
    return [rule for code, rule in RULES.items() if selection.has(code) and rule.only in (None, target)]


def _target(program: Program) -> str:
    names = {name.partition(".")[0] for name in program.imported}
    return "surestep" if "surestep" in names and "torch_xla" not in names else "torch_xla"


def _with_imports(program: Program, finding: Finding) -> Finding:
    """A fix that names modules imports them."""
    if finding.fix is None or not finding.fix.imports:
        return finding
    edits = (*finding.fix.edits, *import_edits(program, finding.fix.imports))
    return replace(finding, fix=replace(finding.fix, edits=edits))


def _compatible(findings: list[Finding], unsafe: bool) -> tuple[list[Edit], int]:
    """The edits of all fixes that don't touch one another's text; the same import may be added by several."""
    edits: list[Edit] = []
    count = 0
    for finding in findings:
        if finding.fix is None or not (finding.fix.safe or unsafe):
            continue
        new = [edit for edit in finding.fix.edits if edit not in edits]
        if not overlap(new, edits):
            edits += new
            count += 1
    return edits, count
