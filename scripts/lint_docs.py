"""Writes the parts of docs/check.md and docs/migrate.md that are made from the rules and the table of old names."""

import pathlib
import re

from surestep.lint.explain import all_rules, old_names

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PARTS = {"check.md": ("rules", all_rules), "migrate.md": ("names", old_names)}


def written(page: str) -> str:
    """A page with its generated part as it should be."""
    name, make = PARTS[page]
    text = (DOCS / page).read_text()
    begin = f"<!-- {name}: written by scripts/lint_docs.py -->\n"
    return re.sub(f"{re.escape(begin)}.*<!-- end -->", lambda _: f"{begin}\n{make()}\n<!-- end -->", text, flags=re.DOTALL)


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(written(page))
