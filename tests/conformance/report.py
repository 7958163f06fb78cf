"""docs/operators.md, from the results: nothing in it hangs on when or how fast they were made."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

from conformance.case import DTYPES, short
from conformance.exceptions import Fault, allowed, faults, reason, unexplained

FILE = pathlib.Path("docs/operators.md")
CODES = {
    "bool": "b", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2fnuz": "f8e5m2fnuz",
}  # fmt: skip
FORWARD = ("forward", "noncontiguous", "in-place", "out", "steps", "state_dict")


def served(result: dict[str, Any], ways: tuple[str, ...]) -> str:
    """lowered, decomposed, host (with the dtypes, where it isn't all), read (a shape that depends on values)."""
    ran = {way for by_way in result.get("outcomes", {}).values() for way in by_way}
    if not ran & set(ways):
        return ""
    host = {dtype for way in ways for dtypes in result.get("host", {}).get(way, {}).values() for dtype in dtypes}
    if host:
        everything = {dtype for dtype, by_way in result["outcomes"].items() if set(by_way) & set(ways)}
        return "host" if host >= everything else f"host for {codes(host)}"
    if any(way in result.get("shape", {}) for way in ways):
        return "read"
    return "decomposed" if any(way in result.get("decomposed", {}) for way in ways) else "lowered"


def codes(names: Any) -> str:
    order = [short(dtype) for dtype in DTYPES]
    return " ".join(CODES[name] for name in sorted((n for n in names if n in CODES), key=order.index))


def on_device(result: dict[str, Any]) -> bool:
    return not any(way != "errors" and names for way, names in result.get("host", {}).items()) and "crash" not in result


def row(result: dict[str, Any]) -> str:
    outcomes = result.get("outcomes", {})
    passed = sum(counts.get("pass", 0) for ways in outcomes.values() for counts in ways.values())
    count = sum(sum(counts.values()) for ways in outcomes.values() for counts in ways.values())
    notes = []
    alike = Counter((fault.dtype, fault.way, fault.of, "" if reason(fault) is None else "°") for fault in faults(result))
    notes += [f"{CODES.get(dtype, '')} {way} {number}/{of}{mark}".strip() for (dtype, way, of, mark), number in alike.items()]
    if result.get("cut"):
        notes.append("cut short")
    return (
        f"| {result['entry']} | {codes(outcomes)} | {passed}/{count} | {served(result, FORWARD)} | {served(result, ('backward',))} "
        f"| {', '.join(notes)} |"
    )


def totals(results: dict[str, dict[str, Any]]) -> list[str]:
    found = list(results.values())
    clean = sum(not unexplained(r) and not r.get("cut") for r in found)
    spotless = sum(not list(faults(r)) and not r.get("cut") for r in found)
    cases = sum(sum(c.values()) for r in found for ways in r.get("outcomes", {}).values() for c in ways.values())
    passed = sum(c.get("pass", 0) for r in found for ways in r.get("outcomes", {}).values() for c in ways.values())
    whole = sum(on_device(r) for r in found)
    empty = [f"`{r['entry']}`" for r in found if not r.get("outcomes") and not list(faults(r))]
    lying = [f"`{r['entry']}`" for r in found if r.get("strides")]
    kinds = Counter(r["kind"] for r in found)
    return [
        f"- {len(found)} entries were run: {kinds['op']} operators, {kinds['module']} modules, {kinds['optimizer']} optimizers. "
        + f"{ran_with(found)}",
        f"- {clean} entries pass: {spotless} without any exception, {clean - spotless} but for exceptions that are listed with their "
        f"reasons below. {len(found) - clean} have open faults.",
        f"- {passed} of {cases} comparisons agree.",
        f"- {whole} entries ({100 * whole // max(len(found), 1)} %) run wholly on the device, forward and backward, in every dtype run.",
        f"- {sum('crash' in r for r in found)} crashes. {sum(bool(r.get('cut')) for r in found)} entries were cut short by the clock."
        f" {len(empty)} entries had nothing to run: they are for other devices, or for sparse tensors only ({', '.join(empty)}).",
        f"- In {len(lying)} entries a result has other strides than the CPU's, with the same values ({', '.join(lying)}).",
    ]


def ran_with(found: list[dict[str, Any]]) -> str:
    """Which dtypes were run, each with how many samples at most, in how many entries."""
    by_limit: dict[int | None, Counter[str]] = {}
    for result in found:
        for dtype in result.get("outcomes", {}).keys() & result.get("ran", {}).keys():
            by_limit.setdefault(result["ran"][dtype], Counter())[dtype] += 1
    order = [short(dtype) for dtype in DTYPES]
    said = []
    for limit, counts in sorted(by_limit.items(), key=lambda item: (item[0] is None, item[0])):
        samples = "All samples" if limit is None else f"At most {limit} samples a dtype"
        listed = ", ".join(f"{CODES[name]} ({counts[name]})" for name in sorted(counts, key=order.index))
        said.append(f"{samples} in these dtypes (entries): {listed}.")
    return " ".join(said)


def excused(results: dict[str, dict[str, Any]]) -> list[str]:
    """Each reason with the entries that it excuses."""
    by_reason: dict[str, list[Fault]] = {exception.reason: [] for exception in allowed()}
    for result in results.values():
        for fault in faults(result):
            why = reason(fault)
            if why is not None:
                by_reason[why].append(fault)
    lines = []
    for why, found in by_reason.items():
        names = sorted({fault.entry for fault in found})
        if names:
            lines.append(f"- {why} ({len(names)}: {', '.join(f'`{name}`' for name in names)})")
    return lines


def open_faults(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for result in results.values():
        by_entry = unexplained(result)
        for fault in by_entry[:2]:
            words = fault.words.replace("|", "/").replace("<", "&lt;").replace("`", "'")[:220]
            lines.append(f"- `{fault.entry}` {fault.dtype} {fault.way} (of {fault.of} cases): {words}")
        if len(by_entry) > 2:
            lines.append(f"- `{result['entry']}`: {len(by_entry) - 2} more")
    return lines


def on_host(results: dict[str, dict[str, Any]]) -> list[str]:
    """The overloads that fell to the host, with the entries that need them."""
    needed: dict[str, set[str]] = {}
    for result in results.values():
        for way, names in result.get("host", {}).items():
            if way != "errors":
                for name in names:
                    needed.setdefault(name, set()).add(result["entry"])
    order = sorted(needed.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"| `{name}` | {len(of)} | {', '.join(sorted(of)[:4])}{' ...' if len(of) > 4 else ''} |" for name, of in order]


def text(results: dict[str, dict[str, Any]]) -> str:
    results = dict(sorted(results.items(), key=lambda item: (item[1]["kind"] != "op", item[1]["kind"], item[0])))
    return "\n".join([
        "# Operators",
        "",
        "What PyTorch's own databases of operators, modules and optimizers give on `xla`, held against CPU eager. Made by",
        "`make conformance`; don't edit.",
        "",
        *totals(results),
        "",
        "*Forward* (with in-place, `out=` and noncontiguous) and *backward* say how an entry is served: **lowered** to XLA;",
        "**decomposed** by PyTorch into what is; **host**: at least one operation runs on CPU copies, counted; **read**: the result's",
        "shape depends on values, which costs a counted read. The last column says what differs: the dtype, the way, how many cases of",
        "how many; ° has its reason below.",
        "",
        "## Exceptions, with their reasons",
        "",
        *(excused(results) or ["None."]),
        "",
        "## Open faults",
        "",
        *(open_faults(results) or ["None."]),
        "",
        "## Operations that run on the host",
        "",
        "| overload | entries | which |",
        "|---|---|---|",
        *on_host(results),
        "",
        "## All entries",
        "",
        "| entry | dtypes | agree | forward | backward | what differs |",
        "|---|---|---|---|---|---|",
        *(row(result) for result in results.values()),
        "",
    ])  # fmt: skip


def write(results: dict[str, dict[str, Any]]) -> None:
    if results:
        FILE.write_text(text(results))
