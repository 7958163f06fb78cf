"""A rule's page: made from its docstring and examples."""

from __future__ import annotations

import re

from surestep.lint.rules import RULES, Rule


def documentation(rule: type[Rule], heading: str = "#") -> str:
    """The page, in Markdown."""
    parts = [f"{heading} {rule.code} {rule.name}", f"Severity: {rule.severity}.", _prose(rule.__doc__ or "")]
    if rule.surestep is not None:
        parts.append(f"A note only with `--target surestep`: {rule.surestep}")
    parts += ["Found:", *map(_block, rule.invalid), "Clean:", *map(_block, rule.valid)]
    return "\n\n".join(parts) + "\n"


def all_rules() -> str:
    """The table of rules, then each rule's page."""
    rows = [f"| [{code}](#{code.lower()}-{rule.name}) | {rule.name} | {rule.severity} | {'note' if rule.surestep else 'same'} |" for code, rule in RULES.items()]
    table = "\n".join(["| code | name | severity | for surestep |", "|---|---|---|---|", *rows])
    return "\n".join([table, "", *(documentation(rule, "##") for rule in RULES.values())])


def _prose(text: str) -> str:
    return re.sub(r"\n\s+", "\n", text.strip())


def _block(code: str) -> str:
    return f"```py\n{code.strip()}\n```"
