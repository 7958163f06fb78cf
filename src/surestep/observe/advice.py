"""Advice on boundaries that the user didn't write. It is said once for a line, when the program comes by for the third time: a loop does so
in each step, and reading one result at the end is nobody's mistake.
"""

from __future__ import annotations

from collections import Counter

from surestep.observe.events import Cause, Event, listen, log
from surestep.observe.frames import Line

_TIMES = 3

_WORDS = {
    Cause.OPTIMIZER_STEP: "the end of optimizer.step() runs what was recorded, since no step() is open and nothing else does. "
    "Put the iteration into `with torch_xla.step():` (surestep.step), and it is one program by what you wrote",
    Cause.VALUE: "reading a value cuts the step in two, and the device waits for the host. "
    "Read it after the step, or hand it to add_step_closure, which is called when the step has run",
    Cause.PRINT: "printing a tensor cuts the step in two, and the device waits for the host. "
    "Print it from add_step_closure, or after the step",
    Cause.SHAPE: "a shape depends on values here, which cuts the step in two. "
    "A mask (torch.where) or a fixed size (topk, padding) keeps it one program",
    Cause.TRANSFER: "moving a tensor to another device cuts the step in two. Move it after the step, or from add_step_closure",
    Cause.LIMIT: "so much was recorded without a boundary that it was run here. "
    "Put the iteration into `with torch_xla.step():` (surestep.step)",
}

_seen: Counter[tuple[Cause, Line | None]] = Counter()
_last_step: list[Line | None] = []  # where an optimizer's boundary is still to be judged: a sync() right after it makes it the user's own


def _advise(event: Event) -> None:
    if event.name == "not_replayed":
        log.warning("surestep: %s: %s is recorded again at each call, since %s.", event.line or "no line of yours", *event.data.values())
    elif event.name == "nothing_pending":
        _last_step.clear()
    elif event.name == "boundary" and event.data["cause"] is not Cause.REPLICAS:  # which comes between a step and its sync()
        if _last_step:
            _count(Cause.OPTIMIZER_STEP, _last_step.pop())
        if event.data["cause"] is Cause.OPTIMIZER_STEP:
            _last_step.append(event.line)
        elif event.data.get("in_step", True) or event.data["cause"] is Cause.LIMIT:  # outside of a step there is nothing that is cut in two
            _count(event.data["cause"], event.line)


def _count(cause: Cause, line: Line | None) -> None:
    if cause not in _WORDS:
        return
    _seen[cause, line] += 1
    if _seen[cause, line] == _TIMES:
        log.warning("surestep: %s: %s.", line or "no line of yours", _WORDS[cause])


listen(_advise)
