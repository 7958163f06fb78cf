"""Memory that programs have freed is kept for the next step."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What XLA does: one of its threads takes a large block for each run. Prints the pages that the last of some blocks cost.
PROGRAM = """
import ctypes, resource, threading, torch, surestep
torch.ones(2, device="xla").sum().item()
c = ctypes.CDLL(None)
c.malloc.restype, c.memset.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]
def work():
    for _ in range(3):
        start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = c.malloc(100 << 20)
        c.memset(block, 1, 100 << 20)
        c.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("variables", [{"SURESTEP_KEEP_MEMORY": "1"}, {}, {"SURESTEP_KEEP_MEMORY": "1", "MALLOC_ARENA_MAX": "8"}])
def test_pages(variables):
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1000) == (variables == {"SURESTEP_KEEP_MEMORY": "1"})
