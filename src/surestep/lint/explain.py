"""A rule's page: made from its docstring and examples."""

from __future__ import annotations

import re

from surestep.lint.deprecated import ENVIRONMENT, MODULES, NAMES, STRINGS
from surestep.lint.migrate.names import SURESTEP
from surestep.lint.rules import RULES, Rule


def documentation(rule: type[Rule], heading: str = "#") -> str:
    """The page, in Markdown."""
    parts = [f"{heading} {rule.code} {rule.name}", f"Severity: {rule.severity}.", _prose(rule.__doc__ or "")]
    if rule.surestep is not None:
        parts.append(f"A note only with `--target surestep`: {rule.surestep}")
    if rule.only is not None:
        parts.append(f"With `--target {rule.only}` only.")
    parts += ["Found:", *map(_block, rule.invalid), "Clean:", *map(_block, rule.valid)]
    return "\n\n".join(parts) + "\n"


def all_rules() -> str:
    """The table of rules, then each rule's page."""
    rows = [
        f"| [{code}](#{code.lower()}-{rule.name}) | {rule.name} | {rule.severity} | {_for_surestep(rule)} |" for code, rule in RULES.items()
    ]
    table = "\n".join(["| code | name | severity | for surestep |", "|---|---|---|---|", *rows])
    return "\n".join([table, "", *(documentation(rule, "##") for rule in RULES.values())])


def old_names() -> str:
    """The table of names, modules, strings and variables; then what is surestep's own."""
    rows = ["| old | since | gone in | |", "|---|---|---|---|"]
    for table in (NAMES, MODULES, STRINGS, ENVIRONMENT):
        rows += [f"| `{name}` | {old.since} | {old.removed or ''} | {old.say} |" for name, old in table.items()]
    rows += ["", "To surestep, besides:", "", "| torch_xla | surestep |", "|---|---|"]
    rows += [f"| `{old}` | `{new}` |" for old, new in SURESTEP.items()]
    return "\n".join([*rows, ""])


def _for_surestep(rule: type[Rule]) -> str:
    return "only" if rule.only == "surestep" else "note" if rule.surestep else "same"


def _prose(text: str) -> str:
    return re.sub(r"\n\s+", "\n", text.strip())


def _block(code: str) -> str:
    return f"```py\n{code.strip()}\n```"
