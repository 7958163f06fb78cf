"""The command line's own options."""

import importlib.metadata

from click.testing import CliRunner

from surestep.cli.main import main


def test_version():
    assert CliRunner().invoke(main, ["--version"]).output == f"surestep, version {importlib.metadata.version('surestep')}\n"


def test_help_by_both_names():
    short, long = (CliRunner().invoke(main, ["run", option]).output for option in ("-h", "--help"))
    assert short == long
    assert "SCRIPT" in short and "--no-summary" in short
