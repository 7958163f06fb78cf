"""Rules on shapes that change: each new shape is a new program."""

from __future__ import annotations

import ast

from surestep.lint.edits import add_argument
from surestep.lint.findings import Finding, Severity
from surestep.lint.program import Call, Function, Program, Use
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.values import BOOLEAN, COUNTER, DATA, TENSOR, XLA


class NoDropLast(Rule):
    """The last batch of an epoch is smaller where the data set's size isn't a multiple of the batch size. A new shape is a new program:
    the step is compiled a second time, at the end of the first epoch. `drop_last=True` leaves the partial batch out.
    """

    code = "XLA701"
    name = "no-drop-last"
    invalid = (
        """
import torch, torch_xla
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=32, shuffle=True)
for batch in loader:
    with torch_xla.step():
        model(batch.to("xla")).sum().backward()
        optimizer.step()
""",
    )
    valid = (
        """
import torch, torch_xla
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
for batch in loader:
    with torch_xla.step():
        model(batch.to("xla")).sum().backward()
        optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """Loaders that training loops on the device iterate over."""
        origins = dict.fromkeys(origin for loop in program.training_loops for origin in loop.frame.value.origins)
        for node in origins:
            given = {keyword.arg for keyword in node.keywords}
            if not given & {"drop_last", "batch_sampler", None} and len(node.args) < 9 and (given & {"batch_size"} or len(node.args) > 1):
                yield self.found(
                    program,
                    node,
                    "The last batch of an epoch may be smaller, and a new shape compiles the step again. Add `drop_last=True`.",
                    fix(add_argument(program.source, node, "drop_last=True")),
                )


class DataDependentShape(Rule):
    """`nonzero`, `masked_select`, `unique`, indexing with a boolean tensor, `torch.where` of one argument: the result's shape depends on
    values. The step is cut there, the host waits for the number, and each new number compiles a new program. A mask
    (`torch.where(mask, x, 0)`) or a fixed size (`topk`, padding) keeps one program.
    """

    code = "XLA702"
    name = "data-dependent-shape"
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        out = model(batch.to("xla"))
        out[out > 0].sum().backward()
        optimizer.step()
""",
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        out = model(batch.to("xla"))
        kept = torch.nonzero(out)
        out.sum().backward()
        optimizer.step()
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        out = model(batch.to("xla"))
        torch.where(out > 0, out, 0).sum().backward()
        out[out > 0] = 0
        optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """In the reach of training loops: calls and indices whose result's shape is data."""
        for event in _in_training(program):
            what = _data_dependent(event)
            if what is not None:
                yield self.found(
                    program,
                    event.node,
                    f"The shape of {what} depends on values: the step is cut here, and each new size compiles a new program. Keep the "
                    f"shape: `torch.where(mask, x, 0)`, "
                    "or `topk` of a fixed size.",
                )


_METHODS = frozenset(["nonzero", "masked_select", "unique", "unique_consecutive"])


def _data_dependent(event: Call | Use) -> str | None:
    if isinstance(event, Use):
        stored = isinstance(event.node, ast.Subscript) and isinstance(event.node.ctx, ast.Store)
        if event.kind == "index" and XLA in event.value and not stored and any(BOOLEAN in index for _, index in event.index):
            return "an index by a boolean tensor"
        return None
    if event.method in _METHODS and XLA in event.receiver and TENSOR in event.receiver:
        return f"`{event.method}`"
    if event.name in {f"torch.{method}" for method in _METHODS} and event.arguments and XLA in event.arguments[0]:
        return f"`{event.name}`"
    if event.name == "torch.where" and len(event.node.args) == 1 and not event.node.keywords and XLA in event.arguments[0]:
        return "`torch.where` of one argument"
    return None


def _in_training(program: Program) -> list[Call | Use]:
    """What happens in training loops, each once."""
    return list(dict.fromkeys(event for loop in program.training_loops for event in program.inside(loop.frame, loop.function)))


class PaddedToLongest(Rule):
    """Padding to the longest of a batch gives each batch a length of its own, and each new length compiles the step again: a run over
    text compiles for minutes. Pad to a fixed `max_length`, or to a multiple of a large number.
    """

    code = "XLA703"
    name = "padded-to-longest"
    invalid = (
        """
import torch, torch_xla
model = Model().to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for texts in batches:
    with torch_xla.step():
        batch = tokenizer(texts, padding=True, return_tensors="pt").to("xla")
        model(**batch).loss.backward()
        optimizer.step()
""",
        """
import torch, torch_xla
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

def collate(batch):
    return pad_sequence(batch, batch_first=True)

model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(dataset, batch_size=8, collate_fn=collate, drop_last=True):
    with torch_xla.step():
        model(batch.to("xla")).sum().backward()
        optimizer.step()
""",
    )
    valid = (
        """
import torch, torch_xla
model = Model().to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for texts in batches:
    with torch_xla.step():
        batch = tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt").to("xla")
        model(**batch).loss.backward()
        optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """Padding in training loops, and in the collate functions of their loaders."""
        events = [event for event in _in_training(program) if isinstance(event, Call)]
        for function in _collates(program):
            events += list(function.calls)
        for call in dict.fromkeys(events):
            if call.name == "torch.nn.utils.rnn.pad_sequence" or _pads(call):
                yield self.found(
                    program,
                    call.node,
                    "Each batch gets a length of its own, and each new length compiles the step again. Write: `padding='max_length', "
                    "max_length=...`, or pad to a fixed length.",
                )


def _pads(call: Call) -> bool:
    given = call.keyword("padding")
    longest = isinstance(given, ast.Constant) and (given.value is True or given.value == "longest")
    return longest and not call.keyword("pad_to_multiple_of") and "token" in ast.unparse(call.node.func).lower()


def _collates(program: Program) -> set[Function]:
    origins = {origin for loop in program.training_loops for origin in loop.frame.value.origins}
    calls = [call for call in program.calls if call.node in origins]
    return program.reach([function for call in calls for function in call.keywords.get("collate_fn", call.receiver).functions])


class ChangingSlice(Rule):
    """A Python number in an index or a slice is part of the program. One that changes from step to step, such as `x[:, :i]`, gives a new
    program in each step: the script compiles for ever. Index with a tensor (`x.index_select(0, torch.tensor(i))`), or mask a fixed
    shape.
    """

    code = "XLA704"
    name = "changing-slice"
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(100, 8, device="xla")
for i in range(100):
    with torch_xla.step():
        model(data[:i]).sum().backward()
        optimizer.step()
""",
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(100, 8, device="xla")
for i in range(100):
    with torch_xla.step():
        model(data[i]).sum().backward()
        optimizer.step()
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(100, 8)
for i in range(100):
    with torch_xla.step():
        model(data[i].to("xla")).sum().backward()
        optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """Indices of XLA tensors that are counters or data."""
        for event in _in_training(program):
            if isinstance(event, Use) and event.kind == "index" and XLA in event.value and TENSOR in event.value:
                for node, value in event.index:
                    changing = value.tags & {COUNTER, DATA} and XLA not in value
                    if changing:
                        yield self._finding(program, event, isinstance(node, ast.Slice))

    def _finding(self, program: Program, event: Use, is_slice: bool) -> Finding:
        if self.target == "surestep" and not is_slice:
            message = (
                "An index that changes from step to step: surestep makes it an input of the program, at the price of one more program."
            )
            return self.found(program, event.node, message, severity=Severity.NOTE)
        what = "A slice whose bounds change" if is_slice else "A Python index that changes"
        message = f"{what} from step to step: each number compiles a program. Mask, or index with a tensor: `x.index_select(0, i)`."
        return self.found(program, event.node, message)
