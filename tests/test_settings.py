"""The environment variables: said when they are wrong, and documented as they are."""

import pathlib
import subprocess
import sys

import pytest

from surestep import settings

ROOT = pathlib.Path(__file__).parent.parent


def test_the_documentation_has_them_all():
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [
        f"| `{name}` | {', '.join(f'`{value}`' for value in setting.values)} | {setting.meaning} |"
        for name, setting in settings.SETTINGS.items()
    ]
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_no_other_file_reads_one():
    """Else a value that it can't have would be passed over."""
    sources = [path for path in (ROOT / "src").rglob("*.py") if "environ" in path.read_text() and "SURESTEP_" in path.read_text()]
    assert sources == [ROOT / "src" / "surestep" / "settings.py"]


def test_values(monkeypatch):
    monkeypatch.delenv("SURESTEP_FALLBACK", raising=False)
    assert settings.value("SURESTEP_FALLBACK") == "warn"
    monkeypatch.setenv("SURESTEP_FALLBACK", "error")
    assert settings.value("SURESTEP_FALLBACK") == "error"
    monkeypatch.setenv("SURESTEP_FALLBACK", "bogus")
    with pytest.raises(ValueError, match=r"SURESTEP_FALLBACK=bogus: it can be warn or error \(not set: warn\)"):
        settings.check()


def test_a_switch(monkeypatch):
    monkeypatch.setitem(settings.SETTINGS, "SURESTEP_SWITCH", settings.Setting(("0", "1"), "for this test"))
    assert not settings.on("SURESTEP_SWITCH")
    monkeypatch.setenv("SURESTEP_SWITCH", "1")
    assert settings.on("SURESTEP_SWITCH")


def test_an_import_says_what_is_wrong():
    def imported(name, value):
        return subprocess.run([sys.executable, "-c", "import surestep"], capture_output=True, text=True, env={name: value}).stderr

    assert "ValueError: SURESTEP_FALLBACK=bogus" in imported("SURESTEP_FALLBACK", "bogus")
    assert "SURESTEP_FALBACK has no effect: surestep has no such setting. The nearest is SURESTEP_FALLBACK" in imported(
        "SURESTEP_FALBACK", "1"
    )
    assert imported("SURESTEP_FALLBACK", "error") == ""
