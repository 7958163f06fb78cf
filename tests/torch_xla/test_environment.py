"""A variable that torch_xla would have heeded isn't passed over in silence."""

import warnings

import pytest

from surestep.torch_xla import _environment


@pytest.mark.parametrize(
    ("name", "said"),
    [("XLA_USE_BF16", r"XLA_USE_BF16=1 has no effect.*bfloat16"), ("XLA_USE_FP16", "float16"), ("XLA_AUTO_SPMD", "mark_sharding")],
)
def test_it_is_said(monkeypatch, name, said):
    monkeypatch.setenv(name, "1")
    with pytest.warns(UserWarning, match=said):
        _environment.warn()


def test_nothing_is_said_of_what_isnt_set(monkeypatch):
    monkeypatch.setenv("XLA_USE_BF16", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _environment.warn()
