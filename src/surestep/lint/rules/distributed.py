"""Rules on torch.distributed with the XLA backend."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.edits import add_argument, remove_argument
from surestep.lint.findings import Severity
from surestep.lint.program import Call, Program
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.values import XLA


def _wraps_xla(program: Program, call: Call) -> bool:
    """Whether a DDP call is about the XLA device: its model is there, or its function makes the process group 'xla'."""
    if call.name not in names.DDP:
        return False
    if any(XLA in argument for argument in call.arguments[:1]):
        return True
    groups = [other for other in program.calls if other.name == "torch.distributed.init_process_group"]
    return bool(groups) and all(_is_xla_group(other) for other in groups)


def _is_xla_group(call: Call) -> bool:
    backend = call.arguments[0] if call.arguments else call.keywords.get("backend")
    return backend is not None and backend.text == "xla"


class DdpDeviceIds(Rule):
    """`device_ids` are numbers of CUDA devices. An XLA process has one device, where the model is already: with `device_ids`,
    `DistributedDataParallel` raises an error about the module's device type, or scatters inputs to a device that isn't there.
    """

    code = "XLA801"
    name = "ddp-device-ids"
    severity = Severity.ERROR
    invalid = (
        """
import torch, torch_xla
from torch.nn.parallel import DistributedDataParallel as DDP
def train(rank):
    model = torch.nn.Linear(8, 1).to("xla")
    model = DDP(model, device_ids=[rank], gradient_as_bucket_view=True)
""",
    )
    valid = (
        """
import torch, torch_xla
from torch.nn.parallel import DistributedDataParallel as DDP
def train(rank):
    model = torch.nn.Linear(8, 1).to("xla")
    model = DDP(model, gradient_as_bucket_view=True)
""",
        """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(8, 1).to("cuda"), device_ids=[0])
""",
    )

    def check(self, program: Program) -> Found:
        """DDP calls with device_ids that aren't None."""
        for call in program.calls:
            given = next((keyword for keyword in call.node.keywords if keyword.arg == "device_ids"), None)
            if (
                given is not None
                and _wraps_xla(program, call)
                and not (isinstance(given.value, ast.Constant) and given.value.value is None)
            ):
                yield self.found(
                    program,
                    call.node,
                    "`device_ids` are CUDA's; an XLA process has one device, and DistributedDataParallel refuses them. Leave "
                    "`device_ids` out.",
                    fix(remove_argument(program.source, call.node, given)),
                )


class DdpBucketView(Rule):
    """On XLA, `DistributedDataParallel` reduces gradients in buckets that it copies to and from, unless gradients are views of the
    buckets. Without `gradient_as_bucket_view=True` the copies are part of each step's program, twice the memory of all gradients, and
    the optimizer may read gradients that aren't the reduced ones.
    """

    code = "XLA802"
    name = "ddp-without-bucket-view"
    invalid = (
        """
import torch, torch_xla
from torch.nn.parallel import DistributedDataParallel as DDP
def train(rank):
    model = DDP(torch.nn.Linear(8, 1).to("xla"))
""",
    )
    valid = DdpDeviceIds.valid

    def check(self, program: Program) -> Found:
        """DDP calls that don't say gradient_as_bucket_view=True."""
        for call in program.calls:
            if _wraps_xla(program, call) and not call.keyword("gradient_as_bucket_view") and not call.has_stars:
                yield self.found(
                    program,
                    call.node,
                    "XLA needs gradients to be views of DDP's buckets. Add `gradient_as_bucket_view=True`.",
                    fix(add_argument(program.source, call.node, "gradient_as_bucket_view=True"), safe=True),
                )


class InitMethod(Rule):
    """Processes that `torch_xla.launch` or `xmp.spawn` start have no MASTER_ADDR, RANK and WORLD_SIZE in their environment:
    `init_process_group("xla")` fails, or waits for an address. `init_method="xla://"` takes ranks and addresses from the XLA runtime.
    (Under torchrun, the environment has them.)
    """

    code = "XLA803"
    name = "init-method"
    severity = Severity.ERROR
    invalid = (
        """
import torch_xla
import torch.distributed as dist
import torch_xla.distributed.xla_backend
def train(index):
    dist.init_process_group("xla")
if __name__ == "__main__":
    torch_xla.launch(train)
""",
    )
    valid = (
        """
import torch_xla
import torch.distributed as dist
import torch_xla.distributed.xla_backend
def train(index):
    dist.init_process_group("xla", init_method="xla://")
if __name__ == "__main__":
    torch_xla.launch(train)
""",
    )

    def check(self, program: Program) -> Found:
        """The xla process group in launched functions, without an init_method, a rank and a store."""
        if any(call.name == "os.putenv" and call.arguments[0].text == "MASTER_ADDR" for call in program.calls):
            return
        for call in program.calls:
            if call.name != "torch.distributed.init_process_group" or not _is_xla_group(call) or call.function not in program.launched:
                continue
            if not call.keywords.keys() & {"init_method", "rank", "store", "world_size"} and len(call.node.args) < 2 and not call.has_stars:
                yield self.found(
                    program,
                    call.node,
                    "A launched process has no MASTER_ADDR and RANK: this fails or waits. Add `init_method='xla://'`, which asks the "
                    "runtime.",
                    fix(add_argument(program.source, call.node, 'init_method="xla://"'), safe=True),
                )
