"""`surestep check`, `surestep migrate` and `surestep rule` as a user calls them."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from surestep.cli.main import main

OLD = "import torch_xla.core.xla_model as xm\nxm.mark_step()\n"
NEW = "import torch_xla\ntorch_xla.sync()\n"
FIXED = "import torch_xla.core.xla_model as xm\nimport torch_xla\ntorch_xla.sync()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    return tmp_path


def call(*arguments, **more):
    return CliRunner().invoke(main, list(arguments), **more)


def test_exit_codes(folder):
    assert call("check", "new.py").exit_code == 0
    assert call("check", "old.py").exit_code == 1
    assert call("check", "old.py", "--exit-zero").exit_code == 0
    assert call("check", "missing.py").exit_code == 2
    assert call("check").exit_code == 2
    assert call("check", "old.py", "--select", "NOPE").exit_code == 2


def test_notes_are_told_and_are_no_fault(folder):
    (folder / "note.py").write_text("import torch_xla.core.xla_model as xm\nxm.get_local_ordinal()\n")
    done = call("check", "note.py")
    assert done.exit_code == 0 and "XLA901 [*] note" in done.output


def test_a_file_that_cannot_be_parsed_is_told_and_the_rest_is_checked(folder):
    (folder / "broken.py").write_text("import torch_xla\nif\n")
    done = call("check", ".")
    assert done.exit_code == 2
    assert "broken.py: can't be parsed: invalid syntax (line 2)" in done.output
    assert "old.py:2:1: XLA901" in done.output


def test_select_and_ignore_by_prefix(folder):
    assert call("check", "old.py", "--select", "XLA1").exit_code == 0
    assert call("check", "old.py", "--ignore", "XLA9").exit_code == 0
    assert call("check", "old.py", "--ignore", "XLA9", "--select", "XLA901").exit_code == 1


def test_settings_of_the_nearest_pyproject(folder):
    (folder / "pyproject.toml").write_text('[tool.surestep.check]\nignore = ["XLA901"]\nexclude = ["new*"]\n')
    assert call("check", "old.py").exit_code == 0
    assert "1 file checked" in call("check", ".").output
    (folder / "pyproject.toml").write_text("[tool.surestep.check]\nignored = []\n")
    done = call("check", "old.py")
    assert done.exit_code == 2 and "has no 'ignored'" in done.output


@pytest.mark.parametrize(
    "text", ["[tool.surestep]\ncheck = 3\n", "tool = 3\n", "[tool]\nsurestep = []\n", "[tool.surestep.check]\nselect = 'X'\n"]
)
def test_settings_of_another_kind(folder, text):
    (folder / "pyproject.toml").write_text(text)
    done = call("check", "old.py")
    assert done.exit_code == (2 if "check" in text else 1)
    assert done.exit_code == 1 or "pyproject.toml: [tool.surestep.check]" in done.output


def test_a_file_that_cannot_be_written_is_told(folder, monkeypatch):
    def write_bytes(path, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.write_bytes", write_bytes)
    for arguments in (("check", "--fix"), ("migrate", "--write")):
        done = call(*arguments, "old.py")
        assert done.exit_code == 2 and "old.py: can't be written: Permission denied" in done.output


def test_fix_writes_and_diff_does_not(folder):
    done = call("check", "old.py", "--diff")
    assert done.exit_code == 1 and "+torch_xla.sync()" in done.output
    assert (folder / "old.py").read_text() == OLD
    done = call("check", "old.py", "--fix")
    assert done.exit_code == 0 and "1 fixed" in done.output
    assert (folder / "old.py").read_text() == FIXED
    assert call("check", "old.py", "--diff").exit_code == 0


def test_standard_input(folder):
    assert "<stdin>:2:1: XLA901" in call("check", "-", input=OLD).output
    done = call("check", "-", "--fix", input=OLD)
    assert done.stdout == FIXED
    assert call("migrate", "-", "--write", input=OLD).stdout == NEW


def test_statistics(folder):
    assert call("check", ".", "--statistics").output.split() == ["1", "XLA901", "deprecated-name"]


def test_output_format(folder):
    assert json.loads(call("check", "old.py", "--output-format", "json").output)[0]["code"] == "XLA901"


def test_target(folder):
    (folder / "loop.py").write_text(
        "import torch, torch_xla\nmodel = torch.nn.Linear(1, 1).to('xla')\noptimizer = torch.optim.SGD(model.parameters(), 1)\n"
        "for x in data:\n    model(x.to('xla')).backward()\n    optimizer.step()\n"
    )
    assert call("check", "loop.py").exit_code == 1
    done = call("check", "loop.py", "--target", "surestep")
    assert done.exit_code == 0 and "XLA101 [*] note" in done.output and "Under surestep: the end of optimizer.step()" in done.output


def test_rule():
    assert "# XLA101 no-step-boundary" in call("rule", "xla101").output
    assert call("rule", "XLA000").exit_code == 2


def test_migrate_shows_and_writes(folder):
    done = call("migrate", ".")
    assert done.exit_code == 1 and "+torch_xla.sync()" in done.output and "1 file to rewrite" in done.output
    assert (folder / "old.py").read_text() == OLD
    assert call("migrate", ".", "--write").exit_code == 0
    assert (folder / "old.py").read_text() == NEW
    assert call("migrate", ".").exit_code == 0
    assert call("migrate", "missing.py").exit_code == 2


def test_check_loads_neither_torch_nor_jax(folder):
    code = (
        "import sys; sys.argv = ['surestep', 'check', 'old.py']\nfrom _surestep_launcher import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 1\n"
        "print(sorted({'torch', 'jax', 'numpy', 'rich', 'surestep.tensor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
