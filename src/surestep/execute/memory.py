"""Memory on the CPU that programs have freed stays with the process, for the next step.

XLA's CPU client allocates what a program needs besides its inputs and outputs anew for each run, and PyTorch's kernels their results. glibc
gives large blocks back to the system as they are freed, and the system then hands out zeroed pages one by one, which took a quarter of the
time of a step of a convolutional network or a transformer. No setting of XLA's prevents it, so glibc can be told to keep memory. All
threads take theirs from one heap then, and a step with hundreds of small results takes twice as long: so it is the user who asks for it.
"""

from __future__ import annotations

import ctypes
import os
import sys

from surestep import settings

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # mallopt's names for them, in malloc.h
_MOST = 2**31 - 1  # bytes at the end of the heap that are kept; mallopt takes an int
# glibc's own variables: who has set one has decided
_OWN = "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_ARENA_MAX"


def keep() -> None:
    """Where ``SURESTEP_KEEP_MEMORY=1`` asks for it. Called once, before XLA's threads are there. Does nothing where the C library isn't
    glibc, or the user has set that up.
    """
    if sys.platform != "linux" or not settings.on("SURESTEP_KEEP_MEMORY"):
        return
    if any(map(os.getenv, _OWN)):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _MOST)
        mallopt(_MMAP_MAX, 0)  # no blocks of their own, which are given back at once
        mallopt(_ARENA_MAX, 1)  # a thread's own heap can't hold a block of 64 MB
