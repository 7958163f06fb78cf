"""Rules on names that torch_xla has replaced or removed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep import _absent
from surestep.lint import vocabulary as names
from surestep.lint.deprecated import ENVIRONMENT, MODULES, NAMES, STRINGS, Old
from surestep.lint.findings import Severity
from surestep.lint.program import Program
from surestep.lint.references import Reference, references
from surestep.lint.rename import renamed
from surestep.lint.rules.rule import Found, Rule


def _message(reference: Reference, old: Old) -> str:
    gone = f" and is gone since {old.removed}" if old.removed else ""
    return f"`{reference.name}` is replaced since torch_xla {old.since}{gone}. {old.say}"


def _old(program: Program) -> Iterator[tuple[Reference, Old]]:
    """Uses through a module, and imports: what an import has told isn't told again where the name is used."""
    for reference in references(program):
        table = NAMES if reference.alias is None else NAMES | MODULES
        if (old := table.get(reference.name)) is not None and not isinstance(reference.node, ast.Name):
            yield reference, old


class DeprecatedName(Rule):
    """torch_xla has a newer name for this. The old one still works in 2.9, with a warning, and isn't in what follows. `surestep migrate`
    rewrites it.
    """

    code = "XLA901"
    name = "deprecated-name"
    invalid = (
        "import torch_xla.core.xla_model as xm\nxm.mark_step()\n",
        "from torch_xla.core.xla_model import xla_device\ndevice = xla_device()\n",
        "import torch_xla.distributed.xla_multiprocessing as xmp\nif __name__ == '__main__':\n    xmp.spawn(train, args=())\n",
        "import torch_xla.experimental.pjrt_backend\n",
        "import torch.distributed as dist\nimport torch_xla\ndist.init_process_group('xla', init_method='pjrt://')\n",
    )
    valid = ("import torch_xla\ntorch_xla.sync()\ndevice = torch_xla.device()\n",)

    def check(self, program: Program) -> Found:
        """References to names that 2.9 still has."""
        for reference, old in _old(program):
            if not old.removed:
                severity = None if old.warns else Severity.NOTE
                yield self.found(program, reference.node, _message(reference, old), renamed(program, reference, old), severity)
        for call in program.calls:
            if call.name == "torch.distributed.init_process_group":
                for node in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and (old := STRINGS.get(node.value)) is not None:
                        yield self.found(program, node, f"'{node.value}' is replaced since torch_xla {old.since}. {old.say}")


class RemovedName(Rule):
    """This name is gone: an AttributeError or an ImportError under torch_xla 2.9. `surestep migrate` rewrites it."""

    code = "XLA902"
    name = "removed-name"
    severity = Severity.ERROR
    surestep = "the drop-in still has the functions that 2.9 removed; modules that are gone stay gone."
    invalid = (
        "import torch_xla.core.xla_model as xm\nprint(xm.xrt_world_size(), xm.get_ordinal())\n",
        "from torch_xla.experimental import pjrt\nprint(pjrt.global_ordinal())\n",
        "import torch_xla.distributed.xla_multiprocessing as xmp\nif __name__ == '__main__':\n    xmp.spawn(train, args=(), nprocs=8)\n",
    )
    valid = ("import torch_xla.runtime as xr\nprint(xr.world_size(), xr.global_ordinal())\n",)

    def check(self, program: Program) -> Found:
        """References to names that 2.9 doesn't have."""
        for reference, old in _old(program):
            if old.removed:
                yield self.found(program, reference.node, _message(reference, old), renamed(program, reference, old))
        for call in program.calls:
            if (
                call.name == f"{names.XMP}.spawn"
                and isinstance(count := call.keyword("nprocs"), ast.Constant)
                and count.value not in (None, 1)
            ):
                message = (
                    f"`nprocs={count.value}` is a ValueError under PJRT: the runtime says how many processes there are. "
                    "Write: `torch_xla.launch(fn, args)`."
                )
                yield self.found(program, call.node, message)


class OldVariable(Rule):
    """An environment variable that torch_xla no longer reads, or is about to drop. Setting one that is gone changes nothing, silently.
    `XLA_USE_BF16` and `XLA_DOWNCAST_BF16` still work in 2.9, behind PyTorch's back: tensors that say float32 are bfloat16 on the
    device. Under surestep, tensors are what they say.
    """

    code = "XLA903"
    name = "old-variable"
    invalid = (
        "import os\nos.environ['XLA_USE_BF16'] = '1'\nimport torch_xla\n",
        "import os\nos.environ.setdefault('XRT_TPU_CONFIG', 'localservice;0;localhost:51011')\nimport torch_xla\n",
    )
    valid = (
        "import os\nos.environ['PJRT_DEVICE'] = 'TPU'\nimport torch_xla\n",
        "import os\nuse = os.environ.get('XLA_USE_BF16')\nos.environ['XLA_USE_BF16'] = '0'\nimport torch_xla\n",
    )

    def check(self, program: Program) -> Found:
        """Variables that are set, but to switch them off."""
        for call in program.calls:
            if call.name not in ("os.putenv", "os.environ.setdefault") or len(call.arguments) < 2 or call.arguments[1].text in ("", "0"):
                continue
            old = ENVIRONMENT.get(call.arguments[0].text or "")
            if old is not None:
                gone = old.removed or self.target == "surestep"
                since = f"has no effect since torch_xla {old.removed}" if old.removed else "has no effect under surestep"
                what = since if gone else "makes tensors bfloat16 that say float32, and is to be dropped"
                node = call.node if call.name == "os.environ.setdefault" else program.statement(call.node.args[0])
                yield self.found(program, node, f"{call.arguments[0].text} {what}. {old.say}")


class BothPackages(Rule):
    """A script that imports surestep and torch_xla runs under `surestep run` only: plain Python has no torch_xla. What `surestep migrate
    --to surestep` has left is listed here.
    """

    code = "XLA904"
    name = "torch_xla-beside-surestep"
    severity = Severity.NOTE
    invalid = ("import surestep\nimport torch_xla.core.xla_model as xm\nsurestep.sync()\nxm.rendezvous('end')\n",)
    valid = ("import surestep\nsurestep.sync()\n", "import torch_xla\ntorch_xla.sync()\n")

    def check(self, program: Program) -> Found:
        """Calls of torch_xla's functions in a file that imports surestep."""
        if "surestep" not in program.imported:
            return
        for call in program.calls:
            if (call.name or "").startswith("torch_xla."):
                yield self.found(program, call.node, f"`{call.name}` isn't surestep's own: this needs `surestep run`.")


class AbsentName(Rule):
    """torch_xla has this name, and surestep's drop-in hasn't yet: an ImportError or an AttributeError that says so, where the line is
    reached. Under `try` with a handler for it, the script's own way out is taken.
    """

    code = "XLA905"
    name = "absent-name"
    severity = Severity.ERROR
    only = "surestep"
    invalid = (
        "from torch_xla.experimental.splash_attention import splash_attention\nout = splash_attention(q, k, v, config)\n",
        "import torch_xla.runtime as xr\naddress = xr.get_master_ip()\n",
        "import torch_xla.distributed.spmd as xs\nxs.xla_distribute_module(model, mesh, xs.auto_policy)\n",
    )
    valid = (
        "import torch_xla.core.xla_model as xm\nxm.optimizer_step(optimizer)\n",
        "try:\n    from torch_xla.experimental import splash_attention\nexcept ImportError:\n    splash_attention = None\n",
    )

    def check(self, program: Program) -> Found:
        """The first place of each such name; what an import has told isn't told again."""
        told: set[str] = set()
        for reference in references(program):
            name = reference.name
            if isinstance(reference.node, ast.Name) or not _absent.is_absent(name) or any(f"{name}.".startswith(f"{t}.") for t in told):
                continue
            told.add(name)
            if not _is_tried(program, reference.node):
                yield self.found(program, reference.node, f"{_absent.message(name)}.")


def _is_tried(program: Program, node: ast.AST) -> bool:
    """Whether it is in a ``try`` whose handlers take the error."""
    while node in program.parents:
        node, inner = program.parents[node], node
        if isinstance(node, ast.Try) and inner in node.body and any(_takes(handler.type) for handler in node.handlers):
            return True
    return False


def _takes(caught: ast.expr | None) -> bool:
    return caught is None or any(name in ast.unparse(caught) for name in ("ImportError", "AttributeError", "Exception"))
