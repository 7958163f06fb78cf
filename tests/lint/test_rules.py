"""Each rule's examples: found where they should be, and not where they shouldn't; what is mended is clean of that rule and parses."""

import ast

import pytest

from surestep.lint.engine import Selection, check, check_file
from surestep.lint.findings import Severity
from surestep.lint.rules import RULES
from surestep.lint.source import Source

EXAMPLES = [(code, kind, text) for code, rule in RULES.items() for kind in ("invalid", "valid") for text in getattr(rule, kind)]


def found(text, **selection):
    return check(Source.read("example.py", text.encode()), Selection(**selection))


@pytest.mark.parametrize(("code", "kind", "text"), EXAMPLES, ids=[f"{code}-{kind}-{i}" for i, (code, kind, _) in enumerate(EXAMPLES)])
def test_example(code, kind, text):
    assert (code in {finding.code for finding in found(text, target=RULES[code].only)}) == (kind == "invalid")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_what_it_is(rule):
    assert rule.__doc__ and rule.valid and rule.invalid and rule.name == rule.name.lower()


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.surestep], ids=lambda rule: rule.code)
def test_harmless_under_surestep_is_a_note(rule):
    for text in rule.invalid:
        assert {f.severity for f in found(text, target="surestep", select=(rule.code,))} == {Severity.NOTE}


@pytest.mark.parametrize(("code", "text"), [(code, text) for code, kind, text in EXAMPLES if kind == "invalid"])
def test_what_can_be_mended_is_mended(code, text):
    selection = Selection(select=(code,), target=RULES[code].only)
    fixable = [finding for finding in found(text, select=(code,), target=RULES[code].only) if finding.fix is not None]
    mended = check_file("example.py", text.encode(), selection, fix=True, unsafe=True)
    assert mended.source is not None
    ast.parse(mended.source.text)
    assert bool(mended.fixed) == bool(fixable)
    assert [finding for finding in mended.findings if finding.fix is not None] == []


def test_an_unsafe_fix_is_not_applied_as_a_safe_one():
    text = RULES["XLA101"].invalid[0]
    assert check_file("example.py", text.encode(), Selection(), fix=True).fixed == 0


@pytest.mark.parametrize(
    "lines",
    [
        "import torch_xla.core.xla_model as xm\nxm.mark_step()",
        "from torch_xla.core import xla_model\nxla_model.mark_step()",
        "import torch_xla.core.xla_model\ntorch_xla.core.xla_model.mark_step()",
        "import torch_xla\ntorch_xla.core.xla_model.mark_step()",
        "from torch_xla.core.xla_model import mark_step as cut\ncut()",
        "import torch_xla.core.xla_model as xm\ncut = xm.mark_step\ncut()",
        "try:\n    import torch_xla.core.xla_model as xm\nexcept ImportError:\n    xm = None\nxm.mark_step()",
        "def f():\n    import torch_xla.core.xla_model as xm\n    xm.mark_step()",
        "import importlib, torch_xla\ndef f():\n    from torch_xla.core import xla_model as xm\n    def g():\n        xm.mark_step()",
    ],
)
def test_a_name_is_known_by_any_import(lines):
    assert {finding.code for finding in found(lines, select=("XLA9",))} == {"XLA901"}


@pytest.mark.parametrize(
    "lines", ["def xla(xm):\n    xm.mark_step()", "import myxla as xm\nxm.mark_step()", "from .xla_model import mark_step\nmark_step()"]
)
def test_other_things_of_the_same_name_are_left_alone(lines):
    assert found(lines) == []


def test_a_loop_is_found_across_functions_and_methods():
    text = """
import torch, torch_xla

class Trainer:
    def __init__(self):
        self.device = torch_xla.device()
        self.model = torch.nn.Linear(8, 1).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def one(self, batch):
        loss = self.model(batch.to(self.device)).sum()
        loss.backward()
        self.optimizer.step()

    def fit(self, loader):
        for batch in loader:
            self.one(batch)
            END
"""
    assert [(f.code, f.line) for f in found(text.replace("END", "pass"))] == [("XLA101", 13)]
    assert found(text.replace("END", "torch_xla.sync()")) == []
    assert found(text.replace("END", "pass").replace("self.one(batch)", "with torch_xla.step():\n                self.one(batch)")) == []


def test_cuda_and_cpu_loops_are_left_alone():
    text = """
import torch
try:
    import torch_xla
except ImportError:
    torch_xla = None
DEVICE
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(batch.to(device)).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
    for device in ('device = "cuda"', 'device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")', "device = get_device()"):
        assert found(text.replace("DEVICE", device)) == []
    assert "XLA101" in {f.code for f in found(text.replace("DEVICE", "device = torch_xla.device()"))}


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("float(loss)", "float"),
        ("print(loss)", "print"),
        ("loss.cpu()", ".cpu()"),
        ("np.asarray(loss)", "numpy"),
        ("if loss > 3: pass", "true"),
        ("f'{loss}'", "Formatting"),
        ("logger.info('loss %s', loss)", "Logging"),
        ("writer.add_scalar('loss', loss, 1)", "Logging"),
        ("bar.set_postfix(loss=loss)", "progress"),
    ],
)
def test_ways_to_read(line, how):
    text = f"""
import logging, torch, torch_xla, numpy as np
from tqdm import tqdm
logger = logging.getLogger()
model = torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bar = tqdm(batches)
for batch in bar:
    loss = model(batch.to("xla")).sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    loss = loss * 2
    {line}
"""
    (finding,) = found(text)
    assert (finding.code, finding.line) == ("XLA601", 14)
    assert how in finding.message


def test_reading_now_and_then_is_a_note():
    text = RULES["XLA601"].invalid[0].replace("        print(loss.item())", "        if i % 100 == 0:\n            print(loss.item())")
    assert [finding.severity for finding in found(text)] == [Severity.NOTE]


def test_what_public_code_taught():
    """Found as false in the review of public code: docs/check-precision.md."""
    forked = "import torch_xla.distributed.xla_multiprocessing as xmp\ndef f():\n    def g(i): pass\n    xmp.spawn(g, **options)\n"
    assert found(forked, select=("XLA3",)) == []
    switched_off = "import os, torch_xla\nos.environ['XLA_USE_BF16'] = str(0)\n"
    assert found(switched_off) == []
    loader_from_elsewhere = RULES["XLA101"].invalid[1].replace('.to("xla")', "")
    assert found(loader_from_elsewhere, select=("XLA1",)) == []
    both_branches = """
import torch.distributed as dist, torch_xla
def broadcast(tensor):
    dist.broadcast(tensor, src=0)
def share(tensor):
    if dist.get_rank() == 0:
        broadcast(tensor)
    else:
        broadcast(torch.empty(3))
"""
    assert found(both_branches) == []
    two_devices = """
import torch
import torch_xla.core.xla_model as xm
def train(model, optimizer, loader, tpu):
    for batch in loader:
        loss = model(batch.to(xm.xla_device()))
        loss.backward()
        if tpu:
            xm.optimizer_step(optimizer)
        else:
            optimizer.step()
"""
    assert [finding.line for finding in found(two_devices, select=("XLA1",))] == [9]


def test_what_is_on_the_host_already_is_no_read():
    text = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
model = torch.compile(torch.nn.Linear(8, 1).to("xla"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
print(sum(p.numel() for p in model.parameters()))
for batch in batches:
    loss = model(batch.to("xla")).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    torch_xla.sync()
    print(scheduler.get_last_lr(), loss.shape, loss.device, len(batch), optimizer.param_groups[0]["lr"], model)
    mean = xm.mesh_reduce("loss", loss, sum)
    print(mean)
    print(norm)
"""
    assert [(finding.code, finding.line) for finding in found(text)] == [("XLA601", 16), ("XLA601", 18)]


LAUNCHED = """
import math, torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros((), device="xla")
    for step, batch in enumerate(loader):
        loss = model(batch.to("xla")).sum()
        loss.backward()
        {before}
        xm.optimizer_step(optimizer, barrier=True)
        {after}
if __name__ == "__main__":
    torch_xla.launch(train, args=(None,))
"""


@pytest.mark.parametrize(
    ("before", "after", "hangs"),
    [
        ("if loss.item() > 9: continue", "pass", True),
        ("if math.isnan(float(loss)): continue", "pass", True),
        ("if not torch.isfinite(loss): continue", "pass", True),
        ("pass", "if loss < 0.1: break", True),
        ("pass", "if float(loss) < 0.1 and step > 3: xm.rendezvous('a')", True),
        ("pass", "worst = max(loss.item(), 3)\n        if worst > 3: xm.mesh_reduce('a', worst, max)", True),
        ("if step % 4: continue", "pass", False),
        ("if len(batch) < 8: continue", "pass", False),
        ("if batch.shape[0] < 8: continue", "pass", False),
        ("if math.isnan(xm.mesh_reduce('nan', loss.item(), max)): continue", "pass", False),
        ("xm.all_reduce('sum', [loss])\n        if loss.item() > 9: continue", "pass", False),
        ("pass", "mean = xm.all_reduce('sum', loss) / xr.world_size()\n        if mean < 0.1: break", False),
        ("pass", "if loss.item() < 0.1: print('good')", False),
        ("pass", "if loss.item() != loss.item(): raise ValueError", False),
        ("pass", "if model: xm.rendezvous('a')", False),
    ],
)
def test_collectives_by_data(before, after, hangs):
    text = LAUNCHED.format(before=before, after=after)
    assert bool(found(text, select=("XLA407",))) == hangs
    assert found(text.replace("torch_xla.launch(train, args=(None,))", "train(0, None)"), select=("XLA407",)) == []


def test_a_script_for_torchrun_is_replicated_too():
    text = """
import torch, torch_xla
import torch.distributed as dist
JOIN
def train(index, loader):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        with torch_xla.step():
            model(batch.to("xla")).sum().backward()
            optimizer.step()
train(0, batches)
"""
    assert [f.code for f in found(text.replace("JOIN", "dist.init_process_group(backend='xla')"))] == ["XLA401"]
    assert found(text.replace("JOIN", "dist.init_process_group('gloo')"), select=("XLA4",)) == []
    assert found(text.replace("JOIN", "dist.init_process_group('xla')\nimport neuronx_distributed"), select=("XLA4",)) == []


def test_what_the_drop_in_lacks_is_told_once_and_for_surestep_only():
    text = "import torch_xla.utils.keyd_queue as kq\nqueue = kq.Queue()\nkq.Queue()\n"
    (finding,) = found(text, target="surestep", select=("XLA905",))
    assert finding.line == 1 and "Now: `torch_xla.distributed.parallel_loader.MpDeviceLoader`" in finding.message
    assert found(text, select=("XLA905",)) == []


BY_HAND = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
def train(rank, loader):
    device = xm.xla_device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(LOADER)
    for _ in range(10):
        loss = model(NEXT).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
    if rank == 0:
        xm.save(model.state_dict(), "model.pt")
        xm.rendezvous("saved")
if __name__ == "__main__":
    xmp.spawn(train, args=(None,), nprocs=COUNT)
"""


@pytest.mark.parametrize("advance", ["next(batches)", "batches.next()", "batches.__next__()", "next(batches)['image'].to(device)"])
def test_the_next_batch_of_a_device_loader_is_a_boundary(advance):
    by_hand = BY_HAND.replace("NEXT", advance).replace("COUNT", "1")
    assert found(by_hand.replace("LOADER", "pl.MpDeviceLoader(loader, device)"), select=("XLA1", "XLA4")) == []
    assert found(by_hand.replace("LOADER", "pl.ParallelLoader(loader, [device]).per_device_loader(device)"), select=("XLA1",)) == []
    if "to(device)" in advance:
        assert [f.code for f in found(by_hand.replace("LOADER", "loader"), select=("XLA1",))] == ["XLA101"]


def test_one_launched_process_may_ask_for_its_rank():
    text = BY_HAND.replace("NEXT", "next(batches)").replace("LOADER", "pl.MpDeviceLoader(loader, device)")
    assert found(text.replace("COUNT", "1"), select=("XLA4", "XLA5")) == []
    assert [f.code for f in found(text.replace("COUNT", "8"), select=("XLA406",))] == ["XLA406"]


def test_sharding_by_spmd_reduces_once():
    text = """
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
model = FSDPv2(model, mesh=mesh)
loss(model).backward()
xm.optimizer_step(optimizer)
"""
    assert found(text, select=("XLA4",)) == []
