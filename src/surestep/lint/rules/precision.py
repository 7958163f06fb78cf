"""Rules on mixed precision, and on settings that are another device's."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.edits import remove_argument, replace
from surestep.lint.findings import Severity
from surestep.lint.program import Call, Frame, Program
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.values import XLA


def _trains_on_xla(program: Program, call: Call) -> bool:
    """Whether all training loops that can be seen are on the XLA device, and the call is in reach of one or beside it."""
    loops = program.training_loops
    return any(
        call.function is loop.function or call.function in program.step_functions or call.function is program.module for loop in loops
    )


class GradScaler(Rule):
    """A `GradScaler` keeps small float16 gradients from becoming zero. bfloat16 has float32's range and needs none: the scaler looks
    through all gradients in each step for nothing, and with torch_xla it reads the answer, which cuts the step in two.
    `torch.cuda.amp.GradScaler` is for CUDA: without it, it is switched off, with a warning.
    """

    code = "XLA804"
    name = "grad-scaler"
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for batch in batches:
    with torch_xla.step():
        scaler.scale(model(batch.to("xla")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("xla")
for batch in batches:
    with torch_xla.step():
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = model(batch.to("xla")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    with torch_xla.step():
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = model(batch.to("xla")).sum()
        loss.backward()
        optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """CUDA's scaler, and any scaler beside a bfloat16 autocast."""
        casts = [call for call in program.calls if call.name in names.AUTOCAST | names.XLA_AUTOCAST]
        bfloat16 = bool(casts) and all(_is_bfloat16(call) for call in casts)
        for call in program.calls:
            if call.name not in names.SCALER or call.keyword("enabled") or not _trains_on_xla(program, call):
                continue
            if call.name in names.CUDA_SCALER or any(argument.text == "cuda" for argument in call.arguments):
                yield self.found(
                    program,
                    call.node,
                    "This scaler is CUDA's, and does nothing for XLA tensors. Leave it out, and use bfloat16: `torch.autocast('xla', "
                    "dtype=torch.bfloat16)`.",
                )
            elif bfloat16:
                yield self.found(
                    program,
                    call.node,
                    "bfloat16 needs no scaler: this one looks through all gradients in each step for nothing (and with torch_xla reads "
                    "the answer, which cuts the step in two). Leave it out: `loss.backward(); optimizer.step()`.",
                )


def _is_bfloat16(call: Call) -> bool:
    given = call.keyword("dtype")
    return (given is None and call.name in names.XLA_AUTOCAST) or (given is not None and "bfloat16" in ast.unparse(given))


class WrongAutocast(Rule):
    """`autocast` is for one device type. Around operations of XLA tensors, `autocast("cuda")` changes nothing: the model runs in float32,
    silently (or with a warning that there is no CUDA).
    """

    code = "XLA805"
    name = "autocast-of-another-device"
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
x = torch.randn(4, 8, device="xla")
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(x)
""",
        """
import torch, torch_xla
from torch.cuda.amp import autocast
model = torch.nn.Linear(8, 1).to("xla")
x = torch.randn(4, 8, device="xla")
with autocast():
    y = model(x)
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to("xla")
x = torch.randn(4, 8, device="xla")
with torch.autocast("xla", dtype=torch.bfloat16):
    y = model(x)
""",
    )

    def check(self, program: Program) -> Found:
        """Autocast blocks of another device with calls of XLA tensors in them."""
        for call in program.calls:
            device = call.arguments[0] if call.arguments else call.keywords.get("device_type")
            other = call.name in names.AUTOCAST and device is not None and device.text in ("cuda", "cpu")
            if not (other or call.name in names.CUDA_AUTOCAST):
                continue
            block = next((f for e in call.function.events for f in e.frames if f.kind == "with" and f.node is call.node), None)
            if block is not None and self._holds_xla(call, block):
                made = None
                if other and call.node.args:
                    made = fix(replace(program.source, call.node.args[0], '"xla"'))
                yield self.found(
                    program,
                    call.node,
                    "This autocast isn't for XLA tensors: what is inside runs in float32. Write: `torch.autocast('xla', "
                    "dtype=torch.bfloat16)`.",
                    made,
                )

    def _holds_xla(self, call: Call, block: Frame) -> bool:
        inside = [other for other in call.function.calls if block in other.frames]
        return any(XLA in argument for other in inside for argument in other.arguments)


class PinnedMemory(Rule):
    """Pinned memory makes copies to CUDA devices faster. For XLA it does nothing but to ask for CUDA: a warning without it, a CUDA
    context and host memory that can't be swapped with it.
    """

    code = "XLA806"
    name = "pinned-memory"
    severity = Severity.NOTE
    invalid = (
        """
import torch, torch_xla
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(dataset, batch_size=8, drop_last=True, pin_memory=True):
    with torch_xla.step():
        model(batch.to("xla")).sum().backward()
        optimizer.step()
""",
    )
    valid = (
        """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(dataset, batch_size=8, drop_last=True, pin_memory=True):
    model(batch.to("cuda")).sum().backward()
    optimizer.step()
""",
    )

    def check(self, program: Program) -> Found:
        """pin_memory=True in loaders of training loops on the device."""
        for node in dict.fromkeys(origin for loop in program.training_loops for origin in loop.frame.value.origins):
            for keyword in node.keywords:
                if keyword.arg == "pin_memory" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
                    made = fix(remove_argument(program.source, node, keyword), safe=True)
                    yield self.found(
                        program, node, "Pinned memory is for CUDA; an XLA device doesn't read it. Leave `pin_memory=True` out.", made
                    )
