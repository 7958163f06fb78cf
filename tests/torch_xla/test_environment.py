"""A variable that torch_xla would have heeded isn't passed over in silence."""

import subprocess
import sys
import warnings

import pytest

from surestep.torch_xla import _environment


@pytest.mark.parametrize(
    ("name", "said"),
    [("XLA_USE_BF16", r"XLA_USE_BF16=1 has no effect.*bfloat16"), ("XLA_USE_FP16", "float16"), ("XLA_AUTO_SPMD", "mark_sharding")],
)
def test_it_is_said(monkeypatch, name, said):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(_environment, "_told", set())
    with pytest.warns(UserWarning, match=said):
        _environment.warn()


def test_nothing_is_said_of_what_isnt_set(monkeypatch):
    monkeypatch.setenv("XLA_USE_BF16", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _environment.warn()


def test_one_that_a_library_sets_later_is_said_as_the_device_is_used():
    script = (
        "import surestep.torch_xla, os, torch, warnings\n"
        "os.environ['XLA_USE_BF16'] = '1'\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.ones(1, device='xla') + 1\n"
        "    surestep.torch_xla._environment.warn()\n"
        "print([str(each.message).partition(':')[0] for each in said])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "['XLA_USE_BF16=1 has no effect']", done.stderr
