"""Rules on several replicas of one model: gradients, metrics, data and files."""

from __future__ import annotations

import ast

from surestep.lint import vocabulary as names
from surestep.lint.edits import replace, text_of
from surestep.lint.findings import Severity
from surestep.lint.program import Call, Program, TrainingLoop, Use
from surestep.lint.rules.rule import Found, Rule, fix
from surestep.lint.values import LOCAL, MASTER, RANK, SAME, TENSOR, XLA, Value

_ONE = "one process with one device has nothing to reduce."


def _launched_loops(program: Program) -> list[TrainingLoop]:
    """Training loops that run in several processes, each with a model of its own."""
    if any(call.name in names.SPMD for call in program.calls):
        return []
    return [loop for loop in program.training_loops if loop.function in program.replicated]


def _launched_calls(program: Program) -> list[Call]:
    return [call for call in program.calls if call.function in program.replicated]


def _replicates(program: Program) -> bool:
    return any(call.name in names.DDP | names.FSDP | names.SHARDED_OPTIMIZER for call in _launched_calls(program))


class GradientsNotReduced(Rule):
    """Each launched process trains a model of its own on its own part of the data. `optimizer.step()` alone never exchanges gradients:
    the replicas drift apart, silently, and what is saved is one of them. `xm.optimizer_step(optimizer)` reduces the gradients and
    steps.
    """

    code = "XLA401"
    name = "gradients-not-reduced"
    severity = Severity.ERROR
    surestep = _ONE
    invalid = (
        """
import torch, torch_xla
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            optimizer.step()
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            xm.optimizer_step(optimizer)
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
        """
import torch, torch_xla
from torch.nn.parallel import DistributedDataParallel as DDP
def train(index, loader):
    model = DDP(torch.nn.Linear(8, 1).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            optimizer.step()
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )

    def check(self, program: Program) -> Found:
        """Plain steps in launched loops where nothing reduces gradients."""
        reducing = any(
            call.name in names.REDUCE_GRADIENTS or call.name == "torch.distributed.all_reduce" for call in _launched_calls(program)
        )
        if reducing or _replicates(program):
            return
        for loop in _launched_loops(program):
            for step, _ in loop.steps:
                if step.name in names.OPTIMIZER_STEP or not isinstance(step.node.func, ast.Attribute) or step.receiver.instances:
                    continue
                optimizer = text_of(program.source, step.node.func.value)
                plain = not step.node.args and not step.node.keywords
                xm = program.alias(names.XM)
                yield self.found(
                    program,
                    step.node,
                    f"Gradients are never reduced over the processes: each trains a model of its own, and they drift apart. Write: "
                    f"`xm.optimizer_step({optimizer})`.",
                    fix(
                        replace(program.source, step.node, f"{xm or names.XM}.optimizer_step({optimizer})"),
                        imports=() if xm else (names.XM,),
                    )
                    if plain
                    else None,
                )


class GradientsReducedTwice(Rule):
    """`DistributedDataParallel` and FSDP reduce gradients in backward; `xm.optimizer_step` reduces them again. It costs a second
    all-reduce of all gradients, and with sharded parameters it mixes gradients of different shards.
    """

    code = "XLA402"
    name = "gradients-reduced-twice"
    severity = Severity.ERROR
    surestep = _ONE
    invalid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch.nn.parallel import DistributedDataParallel as DDP
def train(index, loader):
    model = DDP(torch.nn.Linear(8, 1).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            xm.optimizer_step(optimizer)
""",
    )
    valid = GradientsNotReduced.valid

    def check(self, program: Program) -> Found:
        """xm.optimizer_step where the model is wrapped on every path."""
        wrapped = [call for call in program.calls if call.name in names.DDP | names.FSDP - names.SPMD_FSDP]
        if not wrapped or any(frame.kind == "if" for call in wrapped for frame in call.frames):
            return
        together = {function for call in wrapped for function in self._beside(program, call)}
        for call in program.calls:
            if (
                call.name in names.OPTIMIZER_STEP
                and call.function in together
                and call.node.args
                and not any(f.kind == "if" for f in call.frames)
            ):
                yield self.found(
                    program,
                    call.node,
                    "The wrapped model reduces its gradients in backward(), and this reduces them again. "
                    f"Write: `{ast.unparse(call.node.args[0])}.step()`, with the boundary by step() or sync().",
                )

    def _beside(self, program: Program, call: Call) -> set:
        return program.reach([call.function]) - ({program.module} - {call.function})


class MetricNotReduced(Rule):
    """A loss or an accuracy is that of this process's part of the data. Printed by one process as the result, it speaks of an eighth of
    the data on eight devices. `xm.mesh_reduce(tag, value, reduce_fn)` or `xm.all_reduce` makes it everybody's.
    """

    code = "XLA403"
    name = "metric-not-reduced"
    severity = Severity.NOTE
    surestep = _ONE
    invalid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            loss = model(batch.to("xla")).sum()
            loss.backward()
            xm.optimizer_step(optimizer)
    xm.master_print(loss.item())
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            loss = model(batch.to("xla")).sum()
            loss.backward()
            xm.optimizer_step(optimizer)
    loss = xm.mesh_reduce("loss", loss.item(), lambda losses: sum(losses) / len(losses))
    xm.master_print(loss)
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )

    def check(self, program: Program) -> Found:
        """What only the master prints, read from the device, where nothing is reduced."""
        calls = _launched_calls(program)
        if not _launched_loops(program) or any(call.name in names.REDUCE_METRIC for call in calls):
            return
        for call in calls:
            shown = call.name == f"{names.XM}.master_print" or (call.name == "print" and call.by_rank)
            if shown and any(
                isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "item"
                for part in ast.walk(call.node)
            ):
                yield self.found(
                    program,
                    call.node,
                    "The number is of this process's part of the data only. Reduce it first: `xm.mesh_reduce('loss', value, numpy.mean)`.",
                )


class NoSampler(Rule):
    """Every launched process iterates over its own `DataLoader`. Without a sampler that splits the data, all of them see all of it in the
    same way: eight devices do the work of one, and an epoch takes as long.
    """

    code = "XLA404"
    name = "no-distributed-sampler"
    surestep = "one process sees all the data, as it should."
    invalid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
def train(index, dataset):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            xm.optimizer_step(optimizer)
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, DistributedSampler
def train(index, dataset):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal(), shuffle=True)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            xm.optimizer_step(optimizer)
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )

    def check(self, program: Program) -> Found:
        """Loaders of launched training loops, made without any sampler."""
        split = {f"{names.XR}.world_size", f"{names.XM}.xrt_world_size", f"{names.XR}.global_ordinal", f"{names.XM}.get_ordinal"}
        if any(call.name in split for call in program.calls):
            return  # the data may be split by hand
        launched_nodes = {call.node for call in _launched_calls(program)}
        for node in dict.fromkeys(origin for loop in _launched_loops(program) for origin in loop.frame.value.origins):
            given = {keyword.arg for keyword in node.keywords}
            if (
                node in launched_nodes
                and not given & {"sampler", "batch_sampler", None}
                and len(node.args) < 4
                and not _splits_itself(node, program)
            ):
                yield self.found(
                    program,
                    node,
                    "Every process reads all the data in the same order. "
                    "Write: `DataLoader(..., sampler=DistributedSampler(dataset, xr.world_size(), xr.global_ordinal(), shuffle=True))`.",
                )


def _splits_itself(node: ast.Call, program: Program) -> bool:
    """An iterable dataset of the file decides itself what to give."""
    call = next(call for call in program.calls if call.node is node)
    return any(
        (base.name or "").endswith("IterableDataset") for value in call.arguments[:1] for cls in value.instances for base in cls.bases
    )


class EveryRankSaves(Rule):
    """All processes write the same file at the same time: what is left is one of them, or a mixture that can't be loaded. `xm.save`
    writes on the master only (and has to be called by all).
    """

    code = "XLA405"
    name = "every-rank-saves"
    surestep = "one process writes the file."
    invalid = (
        """
import torch, torch_xla
def train(index):
    model = torch.nn.Linear(8, 1)
    torch.save(model.state_dict(), "model.pt")
if __name__ == "__main__":
    torch_xla.launch(train)
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index):
    model = torch.nn.Linear(8, 1)
    xm.save(model.state_dict(), "model.pt")
    torch.save(model.state_dict(), f"model-{index}.pt")
    if index == 0:
        torch.save(model.cpu().state_dict(), "model.pt")
if __name__ == "__main__":
    torch_xla.launch(train)
""",
    )

    def check(self, program: Program) -> Found:
        """Saves in launched functions, to a path that doesn't depend on the rank, with no condition on it."""
        for call in _launched_calls(program):
            path = call.arguments[1] if len(call.arguments) > 1 else call.keywords.get("f", call.keywords.get("file_or_path"))
            master_only = call.keyword("master_only")
            everyone = call.name in names.SAVE and isinstance(master_only, ast.Constant) and master_only.value is False
            if path is None or not (call.name == "torch.save" or everyone) or path.tags & {RANK, MASTER}:
                continue
            if not program.by_rank(call) and path.text is not None:
                yield self.found(
                    program,
                    call.node,
                    "Every process writes this file, over what the others write. Write: `xm.save(...)`, called by all, or put the "
                    "ordinal into the path.",
                )


class CollectiveByRank(Rule):
    """A collective ends when every process has come to it. Under a condition on the rank, some never do: those that wait hang, mostly
    without a word. Call it outside of the condition; what only one process should do goes inside.
    """

    code = "XLA406"
    name = "collective-by-rank"
    severity = Severity.ERROR
    surestep = "one process is all that a collective waits for."
    invalid = (
        """
import torch_xla.core.xla_model as xm
if xm.is_master_ordinal():
    download()
    xm.rendezvous("downloaded")
""",
        """
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
def report(loss):
    if xr.global_ordinal() != 0:
        return
    print(xm.mesh_reduce("loss", loss, sum))
""",
        """
import torch_xla.core.xla_model as xm
def download():
    fetch()
    xm.rendezvous("downloaded")
if xm.is_master_ordinal():
    download()
""",
    )
    valid = (
        """
import torch_xla.core.xla_model as xm
if not xm.is_master_ordinal():
    xm.rendezvous("downloaded")
download()
if xm.is_master_ordinal():
    xm.rendezvous("downloaded")
""",
        """
import torch_xla.core.xla_model as xm
if xm.is_master_ordinal():
    download()
xm.rendezvous("downloaded")
""",
    )

    def check(self, program: Program) -> Found:
        """Collectives under a condition on the rank, unless another branch has the same one."""
        by_rank = [call for call in program.calls if call.name in names.COLLECTIVE and program.by_rank(call)]
        for call in by_rank:
            if not self._has_partner(call, by_rank):
                yield self.found(
                    program,
                    call.node,
                    f"Only some processes come to this `{_last(call)}`, and it waits for all: they hang. Call "
                    f"it outside of the condition on the rank.",
                )

    def _has_partner(self, call: Call, others: list[Call]) -> bool:
        """The pattern "all but the master wait, the master works, then the master arrives": the same collective, in another condition."""
        same = [other for other in others if other.name == call.name and other.function is call.function and other is not call]
        return any(ast.dump(other.node) == ast.dump(call.node) or not (call.node.args or other.node.args) for other in same)


class CollectiveByData(Rule):
    """A condition on a loss, a count or another number of this replica's data holds on some replicas and not on others. What it guards
    must not be a collective, `xm.optimizer_step` and `xm.rendezvous` included: those that come to it wait for those that don't. Reduce
    the number first, so that all decide the same.
    """

    code = "XLA407"
    name = "collective-by-data"
    severity = Severity.ERROR
    surestep = CollectiveByRank.surestep
    invalid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            loss = model(batch.to("xla")).sum()
            if torch.isnan(loss):
                continue
            loss.backward()
            xm.optimizer_step(optimizer)
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            loss = model(batch.to("xla")).sum()
            loss.backward()
            xm.optimizer_step(optimizer)
        if loss.item() < 0.1:
            break
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )
    valid = (
        """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(loader):
        with torch_xla.step():
            loss = model(batch.to("xla")).sum()
            loss.backward()
            xm.optimizer_step(optimizer)
        mean = xm.all_reduce("sum", loss.detach(), scale=1 / 8)
        if mean.item() < 0.1 or step > 100:
            break
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
""",
    )

    def check(self, program: Program) -> Found:
        """Collectives under such a condition, and such conditions that leave a loop with a collective in it."""
        told = set()
        for call in program.calls:
            guards = [frame.node for frame in call.frames if frame.kind == "if" and _is_own(frame.value)]
            if call.name in names.COLLECTIVE and guards and _in_many(program, call):
                told.add(guards[-1])
                yield self.found(program, call.node, f"Only replicas whose data say so come to this `{_last(call)}`, {_REDUCE}")
        for function in program.functions:
            for event in function.events:
                if isinstance(event, Use) and event.kind == "truth" and event.loops and _is_own(event.value):
                    statement = program.statement(event.node)
                    waiting = [c for c in program.inside(event.loops[-1], function) if isinstance(c, Call) and c.name in names.COLLECTIVE]
                    if statement not in told and _leaves(statement) and waiting and _in_many(program, waiting[0]):
                        told.add(statement)
                        yield self.found(
                            program,
                            event.node,
                            f"Replicas leave this loop, each by its own data, and with it `{_last(waiting[0])}`, {_REDUCE}",
                        )


_REDUCE = "which waits for all: they hang. Reduce the number first, so that all decide the same: `xm.all_reduce`, `xm.mesh_reduce`."


def _is_own(value: Value) -> bool:
    """Whether a condition depends on tensors of this replica."""
    return SAME not in value and (LOCAL in value or {XLA, TENSOR} <= value.tags)


def _in_many(program: Program, call: Call) -> bool:
    return call.function in program.replicated


def _leaves(statement: ast.stmt) -> bool:
    """Whether a branch of a condition ends the loop around it."""
    return isinstance(statement, ast.If) and any(isinstance(last, ast.Break) for last in (*statement.body[-1:], *statement.orelse[-1:]))


def _last(call: Call) -> str:
    return (call.name or "").rpartition(".")[2]
