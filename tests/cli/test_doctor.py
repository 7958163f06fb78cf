"""`surestep doctor`."""

import pytest
import torch
from click.testing import CliRunner

from surestep.cli import doctor
from surestep.cli.main import main


@pytest.fixture
def examined():
    return lambda: CliRunner().invoke(main, ["doctor"])


def test_all_is_well(examined):
    found = examined()
    assert found.exit_code == 0, found.output
    assert torch.__version__ in found.output
    assert "2.13 to 2.15" in found.output
    assert "product  xla:0: as on the CPU" in found.output


def test_a_version_out_of_range(examined, monkeypatch):
    monkeypatch.setitem(doctor.SUPPORTED, "jax", doctor.Range((9, 0), (9, 1)))
    found = examined()
    assert found.exit_code == 1
    assert "not supported" in found.output and "product" not in found.output


def test_a_wrong_product(examined, monkeypatch):
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: False)
    found = examined()
    assert found.exit_code == 1
    assert "not as on the CPU" in found.output


def test_a_cache_that_cant_be_written(examined, monkeypatch, tmp_path):
    import jax

    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", str(tmp_path / "file" / "cache"), raising=False)
    (tmp_path / "file").write_text("")
    found = examined()
    assert found.exit_code == 1
    assert "can't be written" in found.output


@pytest.mark.parametrize(
    ("version", "held"),
    [("2.13.0+cpu", True), ("2.15.9", True), ("2.12.1", False), ("2.16.0", False), ("3.0.0", False), ("2.14.0a0", True)],
)
def test_ranges(version, held):
    assert doctor.Range((2, 13), (2, 15)).holds(version) is held
