"""Rules on checkpoints."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.program import Program
from surestep.lint.rules.rule import Found, Rule
from surestep.lint.values import XLA


class SaveOfXlaTensors(Rule):
    """`torch.save` of XLA tensors writes them with their device: the file can only be loaded where there is an XLA device, each tensor is
    read from the device one by one, and tensors that share storage are written twice. Move to the CPU first; `xm.save` does, and
    writes once.
    """

    code = "XLA501"
    name = "torch-save-of-xla"
    surestep = "a saved tensor is an ordinary one, and `map_location` works as for any device."
    invalid = (
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1).to(torch_xla.device())
torch.save(model.state_dict(), "model.pt")
""",
        """
import torch, torch_xla
model = torch.nn.Linear(8, 1)
model.to("xla")
torch.save({"model": model.state_dict(), "epoch": 3}, "model.pt")
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
model = torch.nn.Linear(8, 1).to(torch_xla.device())
xm.save(model.state_dict(), "model.pt")
torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "model.pt")
""",
    )

    def check(self, program: Program) -> Found:
        """torch.save whose object holds XLA tensors."""
        for call in program.calls:
            saved = call.arguments[0] if call.arguments else call.keywords.get("obj")
            if call.name == "torch.save" and saved is not None and XLA in saved:
                yield self.found(
                    program,
                    call.node,
                    "The file will hold XLA tensors, and loads only where there is an XLA device. "
                    f"Write: `xm.save({', '.join(ast.unparse(argument) for argument in call.node.args)})`, called by every process; or "
                    f"move to the CPU first.",
                )


class SaveByRank(Rule):
    """`xm.save` writes on the master only by itself, and is made to be called by all: it runs what is recorded, collectives included, and
    those wait for the other processes; older releases ended it in a rendezvous as well. Inside of a condition on the rank, the
    script may hang at its first checkpoint.
    """

    code = "XLA502"
    name = "xm-save-by-rank"
    surestep = "one process is all."
    invalid = (
        """
import torch_xla.core.xla_model as xm
if xm.is_master_ordinal():
    xm.save(model.state_dict(), "model.pt")
""",
        """
import torch_xla.core.xla_model as xm
def checkpoint(model):
    xm.save(model.state_dict(), "model.pt")
def train(rank, model):
    if xm.get_ordinal() == 0:
        checkpoint(model)
""",
    )
    valid = (
        """
import torch_xla.core.xla_model as xm
xm.save(model.state_dict(), "model.pt")
""",
    )

    def check(self, program: Program) -> Found:
        """xm.save under a condition on the rank."""
        for call in program.calls:
            if call.name in names.SAVE and program.by_rank(call):
                yield self.found(
                    program,
                    call.node,
                    "`xm.save` writes on the master only by itself, and may wait for all processes; the others never come here. Call it "
                    "outside of the condition.",
                )
