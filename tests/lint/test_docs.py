"""The generated parts of the documentation are current, and the hook calls what there is."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
SPEC = importlib.util.spec_from_file_location("lint_docs", ROOT / "scripts" / "lint_docs.py")
lint_docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint_docs)


@pytest.mark.parametrize("page", lint_docs.PARTS)
def test_generated_parts_are_current(page):
    assert (ROOT / "docs" / page).read_text() == lint_docs.written(page), "run: python scripts/lint_docs.py"


def test_the_hook():
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert re.search("entry: surestep check$", hook, re.MULTILINE)
