"""Rules on reading the device from the host."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.lint import vocabulary as names
from surestep.lint.findings import Finding, Severity
from surestep.lint.program import Call, Frame, Function, Program, TrainingLoop, Use, is_boundary
from surestep.lint.rules.rule import Found, Rule
from surestep.lint.values import MODULE, OPTIMIZER, PROGRESS, TENSOR, XLA, Value

_METHODS = frozenset(["item", "tolist", "numpy", "cpu"])
_CONVERSIONS = frozenset(["float", "int", "bool", "print", "str", "repr", "format", "round"])
_LOGGING = frozenset(["info", "debug", "warning", "error", "log", "log_metrics", "add_scalar", "add_scalars"])


class HostRead(Rule):
    """`.item()`, `float()`, `print`, an `if` on a tensor: the host asks for a value. torch_xla has to run what is recorded so far, in the
    middle of a step, and the host stands still until the device is done; recording and running no longer overlap. In each iteration
    that is often the larger part of the time. Read every N-th step, or hand the value to `xm.add_step_closure`, which runs when the
    step's program has.
    """

    code = "XLA601"
    name = "host-read-in-loop"
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        loss = model(batch.to("xla")).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
""",
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        loss = model(batch.to("xla")).sum()
        if loss > 100:
            continue
        loss.backward()
        optimizer.step()
""",
        """
import torch, torch_xla
from tqdm import tqdm
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bar = tqdm(batches)
for batch in bar:
    with torch_xla.step():
        loss = model(batch.to("xla")).sum()
        loss.backward()
        optimizer.step()
    bar.set_description(f"loss {loss}")
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        loss = model(batch.to("xla")).sum()
        loss.backward()
        optimizer.step()
        xm.add_step_closure(lambda loss: print(loss.item()), args=(loss,))
print(loss.item(), loss.shape)
""",
    )

    def check(self, program: Program) -> Found:
        """Reads in training loops, one finding for each line."""
        deferred = _deferred(program)
        seen: set[int] = set()
        for loop in program.training_loops:
            if program.is_eager:
                return
            events = [event for event in program.inside(loop.frame, loop.function) if event.function not in deferred]
            for event, how in _reads(events):
                if event.node.lineno in seen or _ends(program, event):
                    continue
                seen.add(event.node.lineno)
                yield self._finding(program, loop, event, how)

    def _finding(self, program: Program, loop: TrainingLoop, event: Call | Use, how: str) -> Finding:
        sometimes = any(frame.kind == "if" for frame in _frames_in(loop, event))
        waits = _after_boundary(event)
        message = f"{how} reads the device {'under a condition' if sometimes else 'in each iteration'}: "
        if waits:
            message += "a boundary is right before, so that nothing is cut, but the host waits for the step."
        else:
            message += "the step is cut in two programs here, and the host waits for the device."
        severity = Severity.NOTE if sometimes or waits else self.severity
        message += " Read it every N-th step, or defer it: `xm.add_step_closure(lambda x: print(x.item()), args=(x,))`."
        return self.found(program, event.node, message, severity=severity)


def _reads(events: list[Call | Use]) -> Iterator[tuple[Call | Use, str]]:
    """The events that need a value on the host, each with its name."""
    for event in events:
        if isinstance(event, Use):
            if event.kind == "truth" and _live(event.value):
                yield event, "Asking whether a tensor is true"
            elif event.kind == "format" and _live(event.value):
                yield event, "Formatting a tensor"
        elif event.method in _METHODS and _live(event.receiver):
            yield event, f"`.{event.method}()`"
        elif event.name in _CONVERSIONS and any(map(_live, event.arguments)):
            yield event, f"`{event.name}` of a tensor"
        elif event.name == f"{names.XM}.mesh_reduce" and any(map(_live, event.arguments)):
            yield event, "`xm.mesh_reduce`"
        elif (event.name or "").startswith("numpy.") and any(map(_live, event.arguments)):
            yield event, "numpy"
        elif PROGRESS in event.receiver and any(map(_live, event.keywords.values())):
            yield event, f"A progress bar's `{event.method}`"
        elif event.method in _LOGGING and XLA not in event.receiver and any(map(_live, [*event.arguments, *event.keywords.values()])):
            yield event, f"Logging a tensor (`{event.method}`)"


def _live(value: Value) -> bool:
    return XLA in value and TENSOR in value and MODULE not in value and OPTIMIZER not in value


def _deferred(program: Program) -> set[Function]:
    """Functions that are called when the step's program has run."""
    given = [value for call in program.calls if call.name in names.CLOSURE for value in call.arguments[:1]]
    return program.reach([function for value in given for function in value.functions])


def _frames_in(loop: TrainingLoop, event: Call | Use) -> tuple[Frame, ...]:
    """The frames of an event inside of the loop."""
    return event.frames[event.frames.index(loop.frame) + 1 :] if loop.frame in event.frames else event.frames


def _after_boundary(event: Call | Use) -> bool:
    """Whether the last thing that was recorded before has run already: a boundary before it and nothing of the device in between."""
    events = event.function.events
    for before in reversed(events[: events.index(event)]):
        if isinstance(before, Call) and before.frames == event.frames[: len(before.frames)] and is_boundary(before):
            return True
        if isinstance(before, Call) and XLA in before.result and before.method not in ("detach",):
            return False
    return False


def _ends(program: Program, event: Call | Use) -> bool:
    """Whether the loop, or the program, ends right after the read (a check for nan that raises)."""
    for frame in event.frames:
        if frame.kind == "if" and isinstance(frame.node, ast.If):
            body = (
                frame.node.body
                if any(event.node is part for statement in frame.node.body for part in ast.walk(statement))
                else frame.node.orelse
            )
            if body and isinstance(body[-1], ast.Raise | ast.Break):
                return True
    return False
