"""The results that are kept, one line an entry and run. What was run again replaces what it was; other dtypes are added to it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

FOLDER = pathlib.Path("build/conformance")


def results(folder: pathlib.Path = FOLDER) -> dict[str, dict[str, Any]]:
    """All that is known of each entry, whichever shard it came from; ``ran`` says how many samples of each dtype (None: all)."""
    found: dict[str, dict[str, Any]] = {}
    files = sorted(folder.glob("results*.jsonl"))
    # a run that was stopped may have left half a line
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    for result in sorted(lines, key=lambda line: line["when"]):
        result["ran"] = dict.fromkeys(result["dtypes"], result["limit"])
        before = found.get(result["entry"])
        found[result["entry"]] = result if before is None else merged(before, result)
    return found


def merged(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The older result without the dtypes that were run again, and the new one."""
    again = {*new["dtypes"], "any"}
    if before["ran"].keys() <= again:
        return new
    whole = {**new, "ran": before["ran"] | new["ran"], "cut": bool(before.get("cut") or new.get("cut"))}
    for table in ("outcomes", "faults"):
        kept = {dtype: ways for dtype, ways in before.get(table, {}).items() if dtype not in again}
        whole[table] = kept | new.get(table, {})
    for table in ("host", "shape"):
        whole[table] = _served(before.get(table, {}), new.get(table, {}), again)
    old, now = before.get("decomposed", {}), new.get("decomposed", {})
    whole["decomposed"] = {way: sorted({*old.get(way, []), *now.get(way, [])}) for way in sorted(old.keys() | now.keys())}
    return whole


def covers(result: dict[str, Any], dtypes: list[str], limit: int | None) -> bool:
    """Whether so many samples of these dtypes, or more, have a result."""
    ran = result.get("ran", {})
    return all(dtype in ran and (ran[dtype] is None or (limit is not None and ran[dtype] >= limit)) for dtype in dtypes)


def _served(before: dict[str, Any], new: dict[str, Any], again: set[str]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for table, left_out in ((before, again), (new, set())):
        for way, names in table.items():
            for name, dtypes in names.items():
                if rest := set(dtypes) - left_out:
                    found.setdefault(way, {}).setdefault(name, set()).update(rest)
    return {way: {name: sorted(dtypes) for name, dtypes in names.items()} for way, names in found.items()}
