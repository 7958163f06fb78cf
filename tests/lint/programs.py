"""Random programs made of what rules and migrations look for: imports in all forms, loops, loaders, conditions, launches, and odd
formatting.
"""

from hypothesis import strategies as st

IMPORTS = [
    "import torch_xla",
    "import torch_xla.core.xla_model as xm",
    "from torch_xla.core import xla_model as xm",
    "from torch_xla.core.xla_model import mark_step, xla_device as dev, xrt_world_size",
    "import torch_xla.core.xla_model",
    "import torch_xla.distributed.parallel_loader as pl",
    "import torch_xla.distributed.xla_multiprocessing as xmp",
    "import torch_xla.runtime as xr; import os",
    "import torch_xla.experimental.pjrt_backend",
    "from torch_xla.experimental import pjrt",
    "from torch_xla.core.xla_model import *",
    "try:\n    import torch_xla.core.xla_model as xm\nexcept ImportError:\n    xm = None",
    "import torch_xla.amp",
    "import surestep",
    "xr = 3",
    "torch_xla = None",
]
SIMPLE = [
    "xm.mark_step()",
    "mark_step()  # by its own name",
    "torch_xla.sync()",
    "device = xm.xla_device(devkind='TPU')",
    "device = dev()",
    "model = torch.nn.Linear(8, 1)",
    "model = model.to(device)",
    "model.to('xla')",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * xm.xrt_world_size())",
    "x = torch.randn(4, 8, device='xla')",
    "x.to(device)",
    "loss = model(x).sum()",
    "loss.backward()",
    "optimizer.step()",
    "xm.optimizer_step(optimizer, barrier=True)",
    "optimizer.step(); xm.mark_step()",
    "print(f'{loss} {xm.get_ordinal()}')",
    "text = '''one\n  two\n'''",
    "y = x[x > 0]; z = x[:n]",
    "os.environ['XLA_USE_BF16'] = '1'",
    "xm.save(model.state_dict(), 'model.pt')",
    "torch.save(model, 'model.pt')",
    "xm.rendezvous('end')",
    "loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)",
    "p = pl.ParallelLoader(loader, [device])",
    "pl.ParallelLoader(loader, [device], batchdim=1).per_device_loader(device)",
    "p = p.per_device_loader(device)",
    "xmp.spawn(f, args=(1,), nprocs=8, start_method='fork')",
    "xmp.spawn(lambda i: xm.xla_device(), (), n)",
    "torch_xla.launch(f, (1, 2))",
    "scaler = torch_xla.amp.GradScaler()",
    "dist.init_process_group('xla', init_method='pjrt://')",
    "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0],)",
    "n = x.sum().item()",
    "a.b().c(d).e = xm.xla_device",
    "[xm.mark_step() for _ in range(3)]",
    "del model",
    "assert loss < 3, xm.get_ordinal()",
    "café = xm.xla_device()  # é",
    "xm.master_print(loss.item(), end='')",
    "pass",
    "n += 1",
]
HEADS = [
    "for batch in loader:",
    "for i, (x, y) in enumerate(tqdm(loader)):",
    "for data in pl.MpDeviceLoader(loader, device):",
    "for data in p.per_device_loader(device):",
    "while n:",
    "if xm.is_master_ordinal():",
    "if xm.get_ordinal() == 0:",
    "if __name__ == '__main__':",
    "with torch_xla.step():",
    "with torch.autocast('cuda'), open(f) as g:",
    "def f(index, model=None, *args, **kwargs):",
    "@torch_xla.compile\ndef f(x):",
    "class Net(torch.nn.Module):",
    "def forward(self, x):",
    "try:",
    "async def g():",
    "match n:\n    case [1, *rest]:",
]
LAST = ["continue", "break", "return loss", "raise ValueError(xm.get_ordinal())", "yield x", "global device", "lambda: 1"]


def indented(lines, by):
    return ["\n".join((by + line if line else line) for line in part.split("\n")) if "'''" not in part else by + part for part in lines]


@st.composite
def block(draw, depth=0):
    lines = []
    for _ in range(draw(st.integers(1, 5))):
        if depth < 3 and draw(st.booleans()):
            lines += draw(compound(depth))
        else:
            lines.append(draw(st.sampled_from(SIMPLE + IMPORTS)))
        if draw(st.integers(0, 9)) == 0:
            lines.append(draw(st.sampled_from(["# a comment", "", "xm.mark_step()"])))
    if draw(st.integers(0, 5)) == 0:
        lines.append(draw(st.sampled_from(LAST)))
    return lines


@st.composite
def compound(draw, depth):
    head = draw(st.sampled_from(HEADS))
    by = draw(st.sampled_from(["    ", "  ", "\t"]))
    body = indented(draw(block(depth + 1)), by * 2 if "match" in head else by)
    if "match" in head:
        head = head.replace("    case", f"{by}case")
    lines = [head, *body]
    if head == "try:":
        lines += ["except ValueError:", *indented(draw(block(depth + 1)), by)]
    elif head.startswith(("if", "for", "while")) and draw(st.booleans()):
        lines += ["else:", *indented(draw(block(depth + 1)), by)]
    return lines


def programs():
    """Programs as text; most of them parse."""
    return st.builds(
        lambda imports, body, end: end.join("\n".join(["import torch", *imports, *body]).split("\n")) + end,
        st.lists(st.sampled_from(IMPORTS), max_size=6),
        block(),
        st.sampled_from(["\n", "\n", "\r\n"]),
    )
