"""Which devices there are, and what is said when the asked one isn't."""

import os
import subprocess
import sys

import pytest
import torch

from surestep.execute import dtypes


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CPU_NUM_DEVICES": "two"}, "CPU_NUM_DEVICES='two': expected a positive number"),
        ({"CPU_NUM_DEVICES": "0"}, "expected a positive number"),
        ({"PJRT_DEVICE": "TPU"}, "PJRT_DEVICE=TPU: JAX has no such device here"),
    ],
)
def test_what_cannot_be_had_is_said(environment, message):
    done = run("import torch, surestep; torch.ones(1, device='xla')", **environment)
    assert done.returncode != 0 and message in done.stderr


def test_pjrt_device_names_the_platform():
    done = run(
        "import torch, surestep; print(torch.ones(1, device='xla').tolist(), torch.xla.device_count())",
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES="3",
    )
    assert done.stdout.split("\n")[0] == "[1.0] 3", done.stderr


def test_the_users_jax_is_left_alone():
    done = run(
        "import jax, jax.numpy as jnp, torch, surestep\n"
        "x = torch.ones(2, dtype=torch.float64, device='xla') + 1; x.tolist()\n"
        "assert jnp.ones(2).dtype == jnp.float32 and not jax.config.jax_enable_x64\n"
        "print('ok')"
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_every_dtype_has_one_counterpart():
    shared = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype in dtypes._to_jax()]
    assert len(set(shared)) == 19 and all(dtypes.to_torch(dtypes.to_jax(dtype)) is dtype for dtype in shared)
    with pytest.raises(TypeError, match=r"no dtype torch\.qint8.*Convert"):
        dtypes.to_jax(torch.qint8)
