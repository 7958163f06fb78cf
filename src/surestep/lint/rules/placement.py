"""Rules on what is put on the device, and when."""

from __future__ import annotations

import ast

from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Severity
from surestep.lint.program import Call, Program
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.values import MODULE, OPTIMIZER, TENSOR, XLA, XLA_DEVICE, merged


class OptimizerBeforeMove(Rule):
    """An optimizer holds the parameters that it was given. Under torch_xla, `model.to(device)` makes new ones, and the optimizer goes on
    updating the old ones on the CPU: the model on the device never learns. Build the optimizer after the move.
    """

    code = "XLA201"
    name = "optimizer-before-move"
    severity = Severity.ERROR
    surestep = "the move swaps the parameters' contents, so that the optimizer holds the moved ones."
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
model.to(torch_xla.device())
""",
        """
import torch, torch_xla
def main():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam([{"params": model.parameters()}])
    model = model.to("xla")
""",
    )
    valid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to(torch_xla.device())
optimizer = torch.optim.Adam(model.parameters())
""",
    )

    def check(self, program: Program) -> Found:
        """In one function: an optimizer of a model's parameters, then the model's move."""
        for function in program.functions:
            waiting: dict[str, Call] = {}
            for call in function.calls:
                if call.name is not None and OPTIMIZER in call.result:
                    waiting.update(dict.fromkeys(_models(call), call))
                elif call.method == "to" and isinstance(call.node.func, ast.Attribute) and _to_xla(call):
                    model = ast.unparse(call.node.func.value)
                    if model in waiting and XLA not in call.receiver and TENSOR not in call.receiver:
                        built = waiting.pop(model)
                        yield self.found(
                            program,
                            call.node,
                            f"The optimizer of line {built.node.lineno} holds `{model}`'s parameters on the CPU, and this move makes "
                            f"new ones: "
                            f"the model on the device is never updated. Build the optimizer after this line.",
                        )


def _models(call: Call) -> set[str]:
    """The models whose parameters an optimizer is built with, as they are written."""
    return {
        ast.unparse(part.func.value)
        for part in ast.walk(call.node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in ("parameters", "named_parameters")
    }


def _to_xla(call: Call) -> bool:
    return XLA_DEVICE in merged([*call.arguments[:1], *call.keywords.values()]).device_tags


class DroppedMove(Rule):
    """`tensor.to(device)` returns a new tensor and leaves the old one where it is (a module's `to` moves the module itself). A call whose
    result nobody takes moves nothing: the step then fails on operands of two devices, or trains on the CPU.
    """

    code = "XLA202"
    name = "dropped-move"
    severity = Severity.ERROR
    invalid = (
        """
import torch, torch_xla
x = torch.randn(4, 8)
x.to(torch_xla.device())
""",
    )
    valid = (
        """
import torch, torch_xla
x = torch.randn(4, 8)
x = x.to(torch_xla.device())
model = torch.nn.Linear(8, 1)
model.to("xla")
""",
    )

    def check(self, program: Program) -> Found:
        """A statement that is a tensor's move."""
        for call in program.calls:
            moves = call.method == "to" and call.dropped and TENSOR in call.receiver and MODULE not in call.receiver and _to_xla(call)
            if moves and isinstance(call.node.func, ast.Attribute):
                tensor = ast.unparse(call.node.func.value)
                made = None
                if isinstance(call.node.func.value, ast.Name | ast.Attribute):
                    made = fix(replace(program.source, call.node, f"{tensor} = {text_of(program.source, call.node)}"))
                yield self.found(
                    program,
                    call.node,
                    f"`to` returns a new tensor, which is dropped here: `{tensor}` stays where it is. Write: `{tensor} = "
                    f"{ast.unparse(call.node)}`.",
                    made,
                )
