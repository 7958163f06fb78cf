"""``make conformance``: PyTorch's own databases of operators, modules and optimizers on `xla` against CPU eager.

Results are kept as JSON lines, one an entry, in build/conformance; a run goes on where the last one ended. Breadth comes first: two
samples of each dtype of every entry, then all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

from conformance.case import DTYPES, short
from conformance.entries import Entry, entries
from conformance.exceptions import unexplained
from conformance.kept import FOLDER, covers, results
from conformance.report import write

STAGES = (2, None)  # samples of each dtype
RESTART = 5_000  # cases a worker: its memory grows with the programs that JAX keeps
TESTS = pathlib.Path(__file__).resolve().parents[1]
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
START = 180.0  # seconds that a worker may take to come up


class Worker:
    """A worker process, started when it is first needed and again after it died."""

    def __init__(self, folder: pathlib.Path = FOLDER):
        self.log = folder / "worker.log"
        self.process: subprocess.Popen[str] | None = None
        self.served = 0

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer, or what became of the worker instead."""
        if self.process is None or self.served >= RESTART:
            self.stop()
            with self.log.open("w") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-m", "conformance.worker"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | SETTINGS,
                )  # fmt: skip
            self.served = 0
            seconds += START
        assert self.process.stdin is not None and self.process.stdout is not None
        try:  # a worker that died between two questions breaks the pipe
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.died("it was gone")
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return self.died(f"no answer in {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            return self.died("")
        answer = json.loads(line)
        self.served += answer.get("cases", 0)
        return answer

    def died(self, why: str) -> dict[str, Any]:
        assert self.process is not None
        if why:
            self.process.kill()
        code = self.process.wait()
        self.process = None
        tail = self.log.read_text(errors="replace")
        where = [line.strip() for line in tail.splitlines() if "Fatal" in line or line.startswith("  File")][:6]
        return {"crash": f"{why or f'exit status {code}'} {' | '.join(where)}"[:600]}

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of entries, such as '^linalg' or 'module:'")
    parser.add_argument("--dtypes", default=",".join(map(short, DTYPES)), help="separated by commas")
    parser.add_argument("--max-samples", type=int, help="samples of each dtype (default: two, then all)")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry from the i-th on")
    parser.add_argument("--seconds", type=float, default=1200.0, help="for one entry; what is left then is not run, and said")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--failed", action="store_true", help="only what has a result that isn't a pass")
    parser.add_argument("--report", action="store_true", help="only write docs/operators.md from what is there")
    return parser.parse_args()


def asked_for(chosen: argparse.Namespace, limit: int | None) -> list[Entry]:
    index, _, count = chosen.shard.partition("/")
    found = entries(chosen.only, (int(index), int(count)))
    known = results()
    if chosen.failed:
        return [entry for entry in found if unexplained(known.get(entry.key, {"entry": entry.key}))]
    if chosen.again:
        return found
    return [entry for entry in found if not covers(known.get(entry.key, {}), chosen.dtypes.split(","), limit)]


def main() -> int:
    chosen = options()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not chosen.report:
        for limit in STAGES if chosen.max_samples is None and not chosen.failed else (chosen.max_samples,):
            run(chosen, limit)
    found = results()
    write(found)
    bad = sum(bool(unexplained(result)) for result in found.values())
    print(f"{len(found)} entries, {bad} with faults")
    return 1 if bad else 0


def run(chosen: argparse.Namespace, limit: int | None) -> None:
    """Asks for what has no result yet."""
    todo = asked_for(chosen, limit)
    worker = Worker()
    start = time.monotonic()
    file = FOLDER / f"results-{chosen.shard.replace('/', '-')}.jsonl"
    with file.open("a") as kept:
        for position, entry in enumerate(todo, 1):
            question = {"entry": entry.key, "dtypes": chosen.dtypes.split(","), "limit": limit, "seconds": chosen.seconds}
            result = question | {"kind": entry.kind} | worker.ask(question, 2 * chosen.seconds + 60) | {"when": time.time()}
            kept.write(json.dumps(result) + "\n")
            kept.flush()
            said(position, len(todo), result, time.monotonic() - start)
    worker.stop()


def said(position: int, count: int, result: dict[str, Any], seconds: float) -> None:
    """One line an entry, and its first faults."""
    note = "".join(f"{kind.upper()} {result[kind]}" for kind in ("crash", "harness") if kind in result)
    print(
        f"[{position}/{count} {seconds:.0f}s] {result['entry']} {result.get('cases', 0)} in {result.get('seconds', 0)} s {note}", flush=True
    )
    for fault in unexplained(result)[:6]:
        print(f"    {fault.words} (of {fault.of})"[:400], flush=True)
    if result.get("host"):
        print(f"    host: { {way: list(names) for way, names in result['host'].items()} }"[:300], flush=True)


if __name__ == "__main__":
    sys.exit(main())
