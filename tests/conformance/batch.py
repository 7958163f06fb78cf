"""Many cases in one program: recorded without a read, run at one boundary, then compared."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

import surestep
from conformance.case import Case, Place
from conformance.judge import differs, moved_strides, same_family
from conformance.served import Watch
from surestep.tensor import devices

VALUES = 6_000  # recorded in one trace at most; it is cut by force at 10,000
ELEMENTS = 4_000_000  # of the CPU's results, at most: a program's temporaries are some tens of times as large


class Tally:
    """Outcomes by dtype and way, and what went wrong."""

    def __init__(self):
        self.counts: dict[str, dict[str, Counter[str]]] = {}
        self.faults: dict[str, dict[str, list[str]]] = {}
        self.strides: Counter[str] = Counter()

    def add(self, dtype: str, way: str, outcome: str, label: str = "", what: str = "") -> None:
        self.counts.setdefault(dtype, {}).setdefault(way, Counter())[outcome] += 1
        if outcome != "pass":
            self.faults.setdefault(dtype, {}).setdefault(way, []).append(f"{label}: {what}"[:400])


class Ran:
    """One case's results on both sides."""

    def __init__(self, case: Case, theirs: Any, ours: Any, random: bool, asked: bool):
        self.case, self.theirs, self.ours, self.random, self.asked = case, theirs, ours, random, asked


def attempt(case: Case, place: Place) -> Any:
    torch.manual_seed(0)
    try:
        return case.call(place)
    except Exception as error:  # whatever an operation raises on either side is what is compared
        error.__traceback__ = None
        return error


def run(cases: list[Case], tally: Tally, watch: Watch) -> None:
    """Runs the cases as one program; where that can't be compiled, each half of them alone."""
    ran: list[Ran] = []
    rest: list[Case] = []
    elements = 0
    failed: Exception | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with surestep.step():
                for position, case in enumerate(cases):
                    ran.append(once(case, watch))
                    elements += sum(leaf.numel() for leaf in tree_leaves(ran[-1].theirs) if isinstance(leaf, torch.Tensor))
                    if elements > ELEMENTS or any(recorder.count > VALUES for recorder in devices.started()):
                        rest = cases[position + 1 :]
                        break
            surestep.sync(wait=True)
        except Exception as error:  # whatever compiling or running raises is the result of the one case that bisection finds
            failed = error
        if failed is not None:
            done = [r.case for r in ran] or cases[:1]
            ran.clear()
            forget()
            if len(done) == 1:
                for way in done[0].ways:
                    tally.add(done[0].dtype, way, "error", done[0].label, f"as a program: {type(failed).__name__}: {failed}")
            else:
                run(done[: len(done) // 2], tally, watch)
                run(done[len(done) // 2 :], tally, watch)
        for one in ran:
            settle(one, tally)
    ran.clear()
    if rest:
        run(rest, tally, watch)


def forget() -> None:
    """Drops what is recorded: it can't be run, and would be tried again at every boundary."""
    gc.collect()
    for recorder in devices.started():
        recorder.begin()


def once(case: Case, watch: Watch) -> Ran:
    before = torch.default_generator.get_state()
    torch.manual_seed(0)
    seeded = torch.default_generator.get_state()
    theirs = attempt(case, Place())
    random = not torch.equal(seeded, torch.default_generator.get_state())
    torch.default_generator.set_state(before)
    watch.note(case.ways[0], case.dtype)
    place = Place("xla", note=watch.note)
    ours = attempt(case, place)
    watch.note("")
    return Ran(case, theirs, ours, random, place.asked)


def settle(ran: Ran, tally: Tally) -> None:
    """Judges one case, each of its ways by itself."""
    case, theirs, ours = ran.case, ran.theirs, ran.ours
    if case.error is not None or isinstance(theirs, Exception):
        outcome, what = errors(case, theirs, ours)
        if outcome:
            tally.add(case.dtype, case.way, outcome, case.label, what)
        return
    if isinstance(ours, Exception):
        tally.add(case.dtype, case.way, "error", case.label, words(ours))
        return

    def exactly() -> Any:
        torch.set_default_dtype(torch.float64)  # what integers become
        try:
            result = attempt(case, Place(exact=True))
        finally:
            torch.set_default_dtype(torch.float32)
        return None if isinstance(result, Exception) else result

    for way in case.ways:
        if way not in theirs:
            continue
        outcome, what = judged(ran, way, exactly)
        tally.add(case.dtype, way, outcome, case.label, what)
        if any(moved_strides(a, b) for a, b in zip(tree_leaves(theirs[way]), tree_leaves(ours.get(way)), strict=False)):
            tally.strides[way] += 1


def judged(ran: Ran, way: str, exactly: Any) -> tuple[str, str]:
    case, random = ran.case, ran.random
    left, right = ran.theirs[way], ran.ours.get(way)
    if isinstance(left, Exception):
        return "pass", ""
    if isinstance(right, Exception):
        return "error", words(right)
    away = [t for t in tree_leaves(right) if isinstance(t, torch.Tensor) and t.device.type != "xla"]
    if away and ran.asked:
        return "differ", f"a result is on {away[0].device}"

    def leaves() -> Any:
        result = exactly()
        return None if result is None or isinstance(result.get(way), Exception) else result.get(way)

    if case.values is not None and way != "backward" and not random:
        try:
            found = case.values(left, right)
        except Exception as error:  # a judge for values that is given other shapes must not end the run
            found = f"can't be compared by values: {words(error)}"
        return ("differ", found) if found else ("pass", "")
    try:
        found = differs(left, right, case.tolerance, leaves, random or case.shapes_only, case.normwise)
    except Exception as error:  # reading a result back may raise: that is this case's outcome
        return "error", f"as it is read: {words(error)}"
    if found and not random and draws(case, way, left):
        found = differs(left, right, case.tolerance, leaves, True)
    return ("differ", found) if found else ("pass", "")


def draws(case: Case, way: str, left: Any) -> bool:
    """Whether the CPU's own result hangs on the seed, though its generator stands where it stood (some entries set it, and put it back).

    Two seeds may agree by chance where a draw only chooses among a few.
    """
    seeded = torch.manual_seed
    for other in range(1, 33):
        with mock.patch("torch.manual_seed", lambda seed, other=other: seeded(seed + other)):
            drawn = attempt(case, Place())
        if not isinstance(drawn, Exception) and differs(left, drawn.get(way), None, lambda: None) is not None:
            return True
    return False


def errors(case: Case, theirs: Any, ours: Any) -> tuple[str, str]:
    """Whether both refuse. What the CPU can't do at all, or refuses where nothing was to be refused, says nothing about ours."""
    expected = case.error or theirs
    if not isinstance(theirs, Exception):
        return "", ""  # the CPU takes it: this error belongs to another device
    if case.error is None and (case.way != "in-place" or isinstance(theirs, NotImplementedError)):
        return "", ""
    if not isinstance(ours, Exception):
        return "differ", f"no error; the CPU: {words(theirs)}"
    if not same_family(expected, ours) and not same_family(theirs, ours):
        return "differ", f"{words(ours)}; the CPU: {words(theirs)}"
    return "pass", ""


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
