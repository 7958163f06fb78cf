"""The process that runs entries: one line of JSON comes in for each, one goes out. If it dies, that is a result.

python -m conformance.worker   (started by conformance.__main__)
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from typing import Any

# Compilation is nearly all of the time, and optimizing these small programs is no part of what is tested.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)

import torch

import surestep  # noqa: F401 (registers the device)
from conformance.batch import Tally, forget, run
from conformance.case import DTYPES, short
from conformance.entries import Entry, entries
from conformance.served import Watch
from surestep.tensor import devices

BATCH = 120


def entry_result(entry: Entry, dtypes: set[torch.dtype], limit: int | None, seconds: float, batch: int = BATCH) -> dict[str, Any]:
    """Runs an entry's cases, a batch at a time, until there are none or the time is over."""
    start = time.monotonic()
    tally = Tally()
    cut = False
    ran = 0
    with Watch() as watch:
        source = entry.cases(dtypes, limit)
        while cases := list(itertools.islice(source, batch)):
            if time.monotonic() - start > seconds:
                cut = True
                break
            run(cases, tally, watch)
            ran += len(cases)
            forget()
    for recorder in devices.started():
        recorder.trie.clear()  # programs of this entry are not met again
    gc.collect()
    return {
        "entry": entry.key,
        "kind": entry.kind,
        "cases": ran,
        "cut": cut,
        "seconds": round(time.monotonic() - start, 1),
        "outcomes": tally.counts,
        "faults": tally.faults,
        "strides": tally.strides,
        **watch.result(),
    }


def main() -> None:
    """Answers on the standard output that it was started with; what libraries print goes to the error output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    known = {entry.key: entry for entry in entries()}
    by_name = {short(dtype): dtype for dtype in DTYPES}
    gc.collect()
    gc.freeze()  # the databases and both libraries: a collection between two batches needn't walk through them
    for line in sys.stdin:
        asked = json.loads(line)
        dtypes = {by_name[name] for name in asked["dtypes"]}
        try:
            result = entry_result(known[asked["entry"]], dtypes, asked["limit"], asked["seconds"])
        except Exception as error:  # a fault of the database or of this harness: said, and the next entry runs
            result = {"entry": asked["entry"], "kind": known[asked["entry"]].kind, "harness": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
