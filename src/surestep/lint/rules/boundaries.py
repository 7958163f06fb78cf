"""Rules on step boundaries: where the recorded program runs."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.edits import delete_statement
from surestep.lint.findings import Fix, Severity
from surestep.lint.program import Call, Frame, Program, TrainingLoop, advances, is_boundary, is_step_block, makes_boundaries
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.rules.wrap import wrap_in_step
from surestep.lint.values import COMPILED, UNKNOWN


class NoBoundary(Rule):
    """A loop trains on the XLA device and never says where a step ends. torch_xla only records: nothing runs, the weights stay as they
    were until something syncs, and the graph grows with each iteration. Reading the loss runs the loss alone, not the update.
    `xm.optimizer_step` without `barrier=True` is no boundary by itself: `step()`, `sync()` or a device loader has to be there.
    """

    code = "XLA101"
    name = "no-step-boundary"
    severity = Severity.ERROR
    surestep = "the end of optimizer.step() is a boundary where no step() is open, so that the loop trains."
    invalid = (
        """
import torch, torch_xla
device = torch_xla.device()
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, device=device)
for _ in range(10):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
""",
        """
import torch
import torch_xla.core.xla_model as xm

def train_one(model, optimizer, batch):
    model(batch).mean().backward()
    xm.optimizer_step(optimizer)

def main(loader):
    model = torch.nn.Linear(8, 1).to(xm.xla_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        train_one(model, optimizer, batch.to("xla"))
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        model(batch.to("xla")).sum().backward()
        optimizer.step()
""",
        """
import torch
import torch_xla.core.xla_model as xm
model = torch.nn.Linear(8, 1).to(xm.xla_device())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch.to("xla")).sum().backward()
    xm.optimizer_step(optimizer, barrier=True)
""",
        """
import torch
model = torch.nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch.to("cuda")).sum().backward()
    optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """Training loops without any boundary in reach."""
        if program.is_eager:
            return
        for loop in program.training_loops:
            if _has_boundary(program, loop):
                continue
            steps = [step for step, _ in loop.steps]
            step = next((step for step in steps if step.name in names.OPTIMIZER_STEP), steps[0])
            reduced = step.name in names.OPTIMIZER_STEP
            if reduced and _may_be_device_loader(program, loop):
                continue
            why = (
                "xm.optimizer_step is no boundary without barrier=True, a device loader or step()"
                if reduced
                else "nothing here says where a step ends"
            )
            yield self.found(
                program,
                step.node,
                f"The update is recorded and not run: {why}. The weights stay as they were, and the graph grows with each iteration. "
                "Write: `with torch_xla.step():` around the body of the loop, or `torch_xla.sync()` at its end.",
                wrap_in_step(program, loop.frame.node),
            )


def _has_boundary(program: Program, loop: TrainingLoop) -> bool:
    around = [*loop.outer, loop.frame, *(frame for _, between in loop.steps for frame in between)]
    if any(is_step_block(frame) or makes_boundaries(frame) for frame in around):
        return True
    if any(value.name in names.STEP_OR_COMPILE for value in loop.function.decorators):
        return True
    events = program.inside(loop.frame, loop.function)
    calls = [event for event in events if isinstance(event, Call)]
    if any(is_boundary(call) or advances(call) or COMPILED in call.callee for call in calls):
        return True
    if any(is_step_block(frame) for event in events for frame in event.frames):
        return True
    return _called_in_step(program, loop)


def _may_be_device_loader(program: Program, loop: TrainingLoop) -> bool:
    """Whether the loop is over something from elsewhere, whose batches are on the device already."""
    moves = any(isinstance(event, Call) and event.method == "to" for event in program.inside(loop.frame, loop.function))
    return isinstance(loop.frame.node, ast.For) and loop.frame.value == UNKNOWN and not moves


def _called_in_step(program: Program, loop: TrainingLoop) -> bool:
    """Whether all callers of the loop's function have a ``step()`` around the call."""
    callers = program.callers.get(loop.function, [])
    return bool(callers) and all(COMPILED in call.callee or any(is_step_block(frame) for frame in call.frames) for call in callers)


class MixedBoundaries(Rule):
    """`torch_xla.step()` ends in a boundary of its own. A `sync()` or `mark_step()` inside of it, or beside it in the same loop, cuts the
    step in two programs (or runs an empty one): more compiling, more round trips, and no gain.
    """

    code = "XLA102"
    name = "mixed-boundaries"
    invalid = (
        """
import torch_xla
import torch_xla.core.xla_model as xm
for batch in loader:
    with torch_xla.step():
        loss = model(batch)
        loss.backward()
        optimizer.step()
        xm.mark_step()
""",
        """
import torch_xla
import torch_xla.core.xla_model as xm
for batch in loader:
    with torch_xla.step():
        loss = model(batch)
        loss.backward()
        optimizer.step()
    xm.mark_step()
""",
    )
    valid = (
        """
import torch_xla
for batch in loader:
    with torch_xla.step():
        loss = model(batch)
        loss.backward()
        optimizer.step()
torch_xla.sync()
""",
    )

    def check(self, program: Program) -> Found:
        """Boundaries in a step() block, and in a loop that has one."""
        stepping = {
            event.loops[-1].node
            for function in program.functions
            for event in function.events
            if event.loops and any(map(is_step_block, event.frames))
        }
        for call in program.calls:
            if not is_boundary(call):
                continue
            blocks = [index for index, frame in enumerate(call.frames) if is_step_block(frame)]
            innermost = call.loops[-1:] and call.loops[-1].node
            if blocks:
                where = "inside of step(), which ends in a boundary itself: the step is cut in two programs"
            elif innermost in stepping and not _under_condition(call, call.loops[-1]):
                where = "in a loop that has step() already: it is a second boundary in each iteration"
            else:
                continue
            yield self.found(
                program,
                call.node,
                f"`{ast.unparse(call.node.func)}` is {where}. Take one of the two: leave out {_what(call)}.",
                _without(program, call),
            )


def _under_condition(call: Call, loop: Frame) -> bool:
    return any(frame.kind == "if" for frame in call.frames[call.frames.index(loop) :])


def _what(call: Call) -> str:
    return "`barrier=True`" if call.name in names.OPTIMIZER_STEP else "this line"


def _without(program: Program, call: Call) -> Fix | None:
    """The statement left out; for an optimizer's step, its barrier only."""
    statement = program.statement(call.node)
    if call.name in names.OPTIMIZER_STEP or not (isinstance(statement, ast.Expr) and statement.value is call.node):
        return None
    return fix(delete_statement(program, statement))


class BoundaryUnderLoader(Rule):
    """A device loader (`MpDeviceLoader`, `per_device_loader`) makes a boundary before each batch. A `sync()`, `mark_step()` or
    `barrier=True` in its loop is a second one: an empty program is started in each step, or the step is cut in two.
    """

    code = "XLA103"
    name = "boundary-under-device-loader"
    invalid = (
        """
import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.core.xla_model as xm
for data, target in pl.MpDeviceLoader(loader, torch_xla.device()):
    loss = loss_fn(model(data), target)
    loss.backward()
    xm.optimizer_step(optimizer)
    xm.mark_step()
""",
    )
    valid = (
        """
import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.core.xla_model as xm
for data, target in pl.MpDeviceLoader(loader, torch_xla.device()):
    with torch_xla.step():
        loss = loss_fn(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
""",
    )

    def check(self, program: Program) -> Found:
        """Boundaries whose innermost loop is over a device loader."""
        for call in program.calls:
            if not is_boundary(call) or not call.loops or any(is_step_block(frame) for frame in call.frames):
                continue
            loop = call.loops[-1]
            if makes_boundaries(loop) and not _under_condition(call, loop):
                yield self.found(
                    program,
                    call.node,
                    "The loader makes a boundary before each batch; this is a second one in each step, and what it cuts off is a "
                    "program of its own. "
                    f"Leave out {_what(call)}.",
                    _without(program, call),
                )


class BoundaryBeforeUpdate(Rule):
    """A boundary between `backward()` and the optimizer's step makes two programs of one step: gradients are written to memory and read
    back, and two programs are compiled and started. One boundary at the end of the step does.
    """

    code = "XLA104"
    name = "boundary-before-update"
    severity = Severity.NOTE
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch.to("xla")).sum().backward()
    torch_xla.sync()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    model(batch.to("xla")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
""",
    )

    def check(self, program: Program) -> Found:
        """A boundary after a backward() and before the step, in one block of statements."""
        for loop in program.training_loops:
            for step, _ in loop.steps:
                before = [call for call in step.function.calls if call.frames[: len(step.frames)] == step.frames]
                position = before.index(step)
                boundaries = [index for index, call in enumerate(before[:position]) if is_boundary(call) and call.frames == step.frames]
                backward = [index for index, call in enumerate(before[:position]) if call.method == "backward"]
                after = [call for call in before[position:] if is_boundary(call)]
                if boundaries and backward and boundaries[-1] > backward[-1]:
                    call = before[boundaries[-1]]
                    made = _without(program, call) if after else None
                    message = "One boundary a step would do: this one, between backward() and the update, makes two programs of the step. "
                    yield self.found(
                        program, call.node, message + ("Leave this line out." if after else "Move it behind the update."), made
                    )
