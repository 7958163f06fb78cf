"""What the processes of the tests do: in a module that they can import."""

import os
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import surestep
import surestep.torch_xla.core.functions as xf
import surestep.torch_xla.core.xla_model as xm
import surestep.torch_xla.distributed.xla_backend  # (makes the backend known)
import surestep.torch_xla.runtime as xr
from surestep.parallel.collectives import Members, exchange
from surestep.torch_xla.distributed import xla_multiprocessing as xmp

# names of PyTorch 2.13, and those of other versions
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def places():
    return {
        "xr": (xr.global_ordinal(), xr.local_ordinal(), xr.world_size(), xr.process_index(), xr.process_count(), xr.local_process_count()),
        "xm": (xm.get_ordinal(), xm.get_local_ordinal(), xm.xrt_world_size(), xm.is_master_ordinal(), xm.is_master_ordinal(local=False)),
        "devices": (str(surestep.device()), xm.get_xla_supported_devices(), xr.global_device_count(), xr.addressable_device_count()),
    }


def own(shape, dtype, rank, seed):
    """The value of one rank, which the test knows too."""
    values = np.random.default_rng([seed, rank]).integers(-3, 4, shape)
    return torch.tensor(values).to(dtype)


def collectives(cases):
    """For each case (name, shape, dtype, options) the result on this rank."""
    results = []
    for seed, (name, shape, dtype, options) in enumerate(cases):
        x = own(shape, dtype, xr.global_ordinal(), seed).to("xla")
        if name == "all_reduce":
            found = xm.all_reduce(options["kind"], x, **{k: v for k, v in options.items() if k != "kind"})
        elif name == "reduce_scatter":
            found = xm.reduce_scatter(
                options["kind"], x, options.get("scale", 1.0), options["dim"], options["count"], options.get("groups")
            )
        elif name == "broadcast":
            xm.collective_broadcast([x], options["root"])
            found = x
        elif name == "exchange":
            found = exchanged(x, options["sizes"], xr.global_ordinal())
        else:
            function = {"all_gather": xm.all_gather, "all_to_all": xm.all_to_all, "permute": xm.collective_permute}[name]
            found = function(x, **options)
        results.append(found)
    surestep.sync()
    return [found.cpu() for found in results]


def exchanged(x, sizes, rank):
    """``sizes[i][j]`` rows of what process i has go to process j."""
    parts = x[: sum(sizes[rank])].split(sizes[rank])
    return torch.cat(exchange(parts, [(row[rank], *x.shape[1:]) for row in sizes], Members()))


def lists_and_outputs():
    rank = xr.global_ordinal()
    a, b = torch.full((3,), 1.0 + rank, device="xla"), torch.full((2, 2), 10.0 * (rank + 1), device="xla")
    listed = [a, b]
    assert xm.all_reduce(xm.REDUCE_SUM, listed, scale=0.5) is listed
    view = torch.zeros(4, device="xla")
    xm.all_reduce("sum", [view[1:3].add_(rank + 1)])
    output = torch.empty(6, device="xla")
    assert xm.all_gather(a, output=output) is output
    many = [
        torch.full((size,), float(rank), device="xla", dtype=dtype) for size in (1, 5, 0, 7) for dtype in (torch.float32, torch.bfloat16)
    ]
    xm.all_reduce("max", many)
    return [t.float().tolist() for t in (a, b, view, output, *many)]


def constants():
    """What each process knows while it compiles: a program has nothing else here."""
    rank, found = xr.global_ordinal(), []
    for function in (
        lambda x: xm.all_reduce("sum", x),
        lambda x: xm.all_gather(x),
        lambda x: xm.reduce_scatter("sum", x, 1.0, 0, 2),
        lambda x: xm.all_to_all(x, 0, 0, 2),
        lambda x: xm.collective_permute(x, [[0, 1], [1, 0]]),
    ):
        x = (torch.ones if rank else torch.zeros)(4, device="xla")
        found.append(function(x).tolist())
    x = (torch.zeros if rank else torch.ones)(2, device="xla")
    xm.collective_broadcast([x])
    return [*found, x.tolist()]


def gradients():
    rank = xr.global_ordinal()
    found = []
    for kind in ("sum", "mul", "min", "max"):
        x = torch.tensor([1.0 + rank, 2.0 - rank], device="xla", requires_grad=True)
        xf.all_reduce(kind, x, scale=0.5).sum().backward()
        found.append(x.grad.tolist())
    x = torch.tensor([1.0 + rank], device="xla", requires_grad=True)
    (xf.all_gather(x) * torch.tensor([2.0, 3.0], device="xla")).sum().backward()
    found.append(x.grad.tolist())
    w, y = torch.full((2, 1), 1.0 + rank, device="xla"), torch.arange(4.0, device="xla").reshape(2, 2) * (rank + 1)
    found.append(xf.distributed_mm(w, y, split=2).tolist())
    return [*found, *synced(rank)]


def batch_of_all():
    return torch.arange(72.0).reshape(6, 3, 4).sin()


def synced(rank):
    """torch_xla's SyncBatchNorm: what it gives, the gradients, its statistics, and what it gives in evaluation."""
    x = batch_of_all()[[4, 5] if rank else [0, 1, 2, 3]].to("xla").requires_grad_()
    norm = xf.SyncBatchNorm(3, momentum=0.3).to("xla")
    y = norm(x)
    (y.square() * x).sum().backward()
    with pytest.raises(ValueError, match=r"a batch of shape \[N, 3, ...\], not \[2, 4\]"):
        norm(torch.zeros(2, 4, device="xla"))
    return [t.detach().cpu() for t in (y, x.grad, norm.weight.grad, norm.running_mean, norm.running_var, norm.eval()(x))]


def meetings(directory):
    rank = xr.global_ordinal()
    found = {
        "rendezvous": xm.rendezvous("here", f"from {rank}".encode()),
        "mesh_reduce": xm.mesh_reduce("loss", torch.tensor([1.0 + rank], device="xla"), lambda values: sum(v.item() for v in values)),
        "on_ordinals": xm.do_on_ordinals(lambda x: x.tolist(), (torch.ones(1, device="xla"),), ordinals=(1,)),
        "serial": xmp.MpSerialExecutor().run(lambda: rank),
    }
    xm.save({"weight": torch.full((2,), float(rank), device="xla")}, f"{directory}/saved.pt")
    found["saved"] = torch.load(f"{directory}/saved.pt", weights_only=True)["weight"].tolist()
    xm.master_print("only the master's line")
    torch.manual_seed(rank)
    model = nn.BatchNorm1d(3).to("xla")
    nn.init.normal_(model.weight)
    model.running_mean += rank
    xm.broadcast_master_param(model)
    found["parameters"] = model.weight.tolist() + model.running_mean.tolist()
    return found


def network(kind):
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    if kind == "batch norm":
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    if kind == "cnn":
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(32, 3))


def make_optimizer(model):
    """Not Adam, which makes full steps of the rounding where a gradient is zero (a key's bias in attention)."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches(kind, steps, size):
    shape = {"mlp": (6,), "cnn": (1, 4, 4), "batch norm": (1, 4, 4), "transformer": (4, 8)}[kind]
    torch.manual_seed(1)
    return [(torch.randn(size, *shape), torch.randint(3, (size,))) for _ in range(steps)]


def train_alone(kind, steps, size):
    """One process, on the CPU, on whole batches."""
    model = network(kind)
    optimizer = make_optimizer(model)
    losses = []
    for x, y in batches(kind, steps, size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*(p.detach() for p in model.parameters()), *model.buffers()], losses


def train(kind, steps, size, style):
    """Pattern 2: each process on its part of each batch."""
    rank, world = xr.global_ordinal(), xr.world_size()
    model = network(kind).to("xla")
    optimizer = make_optimizer(model)
    losses = []
    compiled = surestep.compile(one_step)
    surestep.clear_metrics()
    for x, y in batches(kind, steps, size):
        x, y = x[rank::world].to("xla"), y[rank::world].to("xla")
        if style == "step":
            with surestep.step():
                loss = one_step(model, optimizer, x, y)
                xm.add_step_closure(lambda loss: losses.append(loss.item()), (loss.detach(),))
        elif style == "compile" or (style == "compile on one" and rank == 0):
            losses.append(compiled(model, optimizer, x, y))
        else:
            losses.append(one_step(model, optimizer, x, y).detach())
            if style == "print" and xm.is_master_ordinal():
                losses[-1].item()
    metrics = surestep.metrics()
    return [p.detach().cpu() for p in model.parameters()], [float(loss) for loss in losses], metrics.to_dict()


def one_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    xm.optimizer_step(optimizer)
    return loss


def rest(rank, seconds):
    time.sleep(seconds)


def fail(rank, how, directory):
    with open(f"{directory}/{rank}.pid", "w") as file:
        file.write(str(os.getpid()))
    x = torch.ones(4, device="xla")
    for step in range(5):
        if step == 3 and rank == 1:
            if how == "exception":
                raise ValueError("a fault of rank 1")
            if how == "kill inside":  # while the program runs: the others wait in the collective at its end
                threading.Timer(0.1, os.kill, (os.getpid(), 9)).start()
                y = torch.randn(500, 500, device="xla")
                for _ in range(300):
                    y = (y @ y).tanh()
                x = x + y[0, 0]
            if how == "kill":
                os.kill(os.getpid(), 9)
            if how == "exit":
                raise SystemExit(3)
            if how == "short":
                return
            if how == "operation":
                x = xm.all_reduce("max", x)
                surestep.sync()
                continue
            if how == "shape":
                x = torch.ones(5, device="xla")
            if how == "dtype":
                x = torch.ones(4, device="xla", dtype=torch.float64)
            if how == "rendezvous":
                xm.rendezvous("alone")
        x = xm.all_reduce("sum", x)
        surestep.sync()
    x.tolist()


def compiled_short():
    """Rank 1 has a step less, when both replay."""
    model = network("mlp").to("xla")
    optimizer = make_optimizer(model)
    compiled = surestep.compile(one_step)
    for number, (x, y) in enumerate(batches("mlp", 9, 4)):
        if number < 8 or xr.global_ordinal() == 0:
            loss = compiled(model, optimizer, x.to("xla"), y.to("xla"))
    assert surestep.metrics().replays > 2
    loss.item()


def c10d(init):
    """Each of torch.distributed's collectives."""
    dist.init_process_group("xla", **init)
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0, device="xla") + 10 * rank
    found = {"place": (rank, world, dist.get_backend())}

    def run(name, tensor, function, *args, **kwargs):
        function(*args, **kwargs)
        found[name] = [t.cpu().tolist() for t in tensor] if isinstance(tensor, list) else tensor.cpu().tolist()

    for name, op in (
        ("sum", dist.ReduceOp.SUM),
        ("avg", dist.ReduceOp.AVG),
        ("max", dist.ReduceOp.MAX),
        ("product", dist.ReduceOp.PRODUCT),
    ):
        t = x.clone()
        run(f"all_reduce {name}", t, dist.all_reduce, t, op)
    t = x.clone()
    run("reduce", t, dist.reduce, t, 1)
    t = x.clone()
    run("broadcast", t, dist.broadcast, t, 1)
    slots = [torch.empty(4, device="xla") for _ in range(world)]
    run("all_gather", slots, dist.all_gather, slots, x)
    t = torch.empty(4 * world, device="xla")
    run("all_gather_into_tensor", t, all_gather_single, t, x)
    slots = [torch.empty(4, device="xla") for _ in range(world)] if rank == 1 else None
    dist.gather(x, slots, dst=1)
    found["gather"] = [slot.tolist() for slot in slots] if slots else None
    t = torch.empty(4, device="xla")
    run("scatter", t, dist.scatter, t, [x, x + 1] if rank == 0 else None, 0)
    t = torch.empty(4, device="xla")
    run("reduce_scatter", t, dist.reduce_scatter, t, [x, x + 1])
    t = torch.empty(2, device="xla")
    run("reduce_scatter_tensor", t, reduce_scatter_single, t, x)
    slots = [torch.empty(4, device="xla") for _ in range(world)]
    run("all_to_all", slots, dist.all_to_all, slots, [x, x + 1])
    t = torch.empty(4, device="xla")
    run("all_to_all_single", t, dist.all_to_all_single, t, x)
    dist.barrier()
    group = dist.new_group([1])
    t = x.clone()
    if rank == 1:
        dist.all_reduce(t, group=group)
    found["group of one"] = t.tolist()
    both = dist.new_group([0, 1])
    t = x.clone()
    work = dist.all_reduce(t, group=both, async_op=True)
    work.wait()
    found["group of both"] = t.tolist()
    objects = [{"from": rank}, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    everybody = [None] * world
    dist.all_gather_object(everybody, f"rank {rank}")
    found["objects"] = (objects, everybody)
    found["messages"] = messages(rank, world)
    found["functional"] = functional(x)
    rows = torch.arange(6.0, device="xla").reshape(3, 2) + 10 * rank  # one for rank 0, two for rank 1
    t = torch.empty((2, 2) if rank == 0 else (4, 2), device="xla")
    run("uneven all_to_all_single", t, dist.all_to_all_single, t, rows, [1 + rank] * 2, [1, 2])
    t = torch.empty(4, device="xla")
    run("all_to_all_single with splits", t, dist.all_to_all_single, t, x, [2, 2], [2, 2])
    slots = [torch.empty(1 + rank, device="xla") for _ in range(world)]
    run("uneven all_to_all", slots, dist.all_to_all, slots, [x[:1], x[2:]])
    t = torch.empty(2, device="xla")
    run("reduce_scatter of one", t, dist.reduce_scatter, t, [x])
    slots = [[torch.empty(4, device="xla"), torch.empty((), device="xla")] for _ in range(world)]
    dist.all_gather_coalesced(slots, [x, x[0]])
    found["all_gather_coalesced"] = [[t.tolist() for t in of_one] for of_one in slots]
    t, u = x.clone(), x[:2].clone()
    with dist._coalescing_manager(device=torch.device("xla")):
        dist.all_reduce(t)
        dist.all_reduce(u)
    found["coalesced"] = (t.tolist(), u.tolist())
    wrong_ones(x)
    # nobody on rank 0 reads what it sends last
    last = torch.full((2,), 5.0 + rank, device="xla")
    if rank == 0:
        dist.send(last, 1)
    else:
        dist.recv(last, 0)
        found["last"] = last.tolist()
    dist.destroy_process_group()
    return found


def wrong_ones(x):
    """What both processes hear of before anything is recorded."""
    for error, message, call in (
        (NotImplementedError, "must know who sends", lambda: dist.recv(x)),
        (ValueError, r"4 row\(s\) can't be split into \[1, 2\] for 2", lambda: dist.all_to_all_single(x, x, [1, 3], [1, 2])),
        (ValueError, r"4 row\(s\) can't be split into \[4\] for 2", lambda: dist.all_to_all_single(x, x, [4], [2, 2])),
        (ValueError, "1 part.* to send and 1 to get, for 2", lambda: dist.all_to_all([x], [x])),
        (ValueError, "for itself is of shape", lambda: dist.all_to_all([x[:1], x[:1]], [x, x])),
        (ValueError, r"the output is of shape \[3\], 3 element\(s\), and must have 8", lambda: all_gather_single(x[:3], x)),
        (ValueError, r"the input is of shape \[4\], 4 element\(s\), and must have 2", lambda: reduce_scatter_single(x[:1], x)),
        (ValueError, r"the output is of shape \[3\]", lambda: dist.all_to_all_single(x[:3], x)),
    ):
        with pytest.raises(error, match=message):
            call()


def messages(rank, world):
    """Each gets what the other sends: one after the other, at once, Python objects, torch_xla's."""
    other = 1 - rank
    x, y = torch.full((3,), 1.0 + rank, device="xla"), torch.zeros(3, device="xla")
    found = []
    for order in (0, 1):
        dist.send(x, other) if rank == order else dist.recv(y, other)
    found.append(y.tolist())
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
    x = x * 10
    operations += [dist.P2POp(dist.irecv, z := torch.empty(3), other), dist.P2POp(dist.isend, x, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found += [y.tolist(), z.tolist()]
    objects = [f"of {rank}"]
    dist.send_object_list(objects, 1) if rank == 0 else dist.recv_object_list(objects, 0)
    found.append(objects)
    if rank == 1:
        assert xm.send(x, 7) is x
    else:
        found.append(xm.recv(torch.empty(3, device="xla"), 7).tolist())
    return found


def functional(x):
    """Each as a new tensor; PyTorch's compilers call these."""
    world = dist.group.WORLD
    found = {
        "all_reduce": functional_collectives.all_reduce(x, "sum", world),
        "all_gather": functional_collectives.all_gather_single(x, 0, world),
        "reduce_scatter": functional_collectives.reduce_scatter_single(x, "sum", 0, world),
        "broadcast": functional_collectives.broadcast(x, 1, world),
        "all_to_all": functional_collectives.all_to_all_single(x, None, None, world),
        "coalesced": torch.cat(functional_collectives.all_reduce_coalesced([x, x + 1], "sum", world)),
    }
    return {name: value.tolist() for name, value in found.items()}


def ddp(kind, steps, size, options, style="step"):
    """Pattern 3: DistributedDataParallel on each process's part of each batch."""
    dist.init_process_group("xla", init_method="xla://")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = network(kind)
    if rank == 1:  # DDP gives all the first one's
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
    if kind == "batch norm":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model.to("xla"), gradient_as_bucket_view=True, **options)
    if style == "half":
        hook = default_hooks.bf16_compress_hook
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # PyTorch wants CUDA for what has its name
    optimizer = make_optimizer(model)
    losses = []
    surestep.sync()
    surestep.clear_metrics()
    for x, y in batches(kind, steps, size):
        x, y = x[rank::world].to("xla"), y[rank::world].to("xla")
        with surestep.step():
            optimizer.zero_grad()
            if style == "no_sync":
                half = len(x) // 2
                with model.no_sync():
                    (nn.functional.cross_entropy(model(x[:half]), y[:half]) / 2).backward()
                (nn.functional.cross_entropy(model(x[half:]), y[half:]) / 2).backward()
            else:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
    metrics = surestep.metrics().to_dict()
    buffers = [buffer.cpu() for buffer in model.buffers()]
    result = [*(p.detach().cpu() for p in model.parameters()), *buffers], [loss.item() for loss in losses], metrics
    dist.destroy_process_group()
    return result


def joined():
    """One process has two batches more than the other."""
    dist.init_process_group("xla", init_method="xla://")
    rank = dist.get_rank()
    model = DistributedDataParallel(network("mlp").to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for x, y in batches("mlp", 3 + 2 * rank, 4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to("xla")), y.to("xla")).backward()
            optimizer.step()
    result = [p.detach().cpu() for p in model.parameters()]
    dist.destroy_process_group()
    return result


def drift(how):
    """Training that goes apart."""
    rank = xr.global_ordinal()
    torch.manual_seed(rank if how == "weights" else 0)
    model = nn.Linear(6, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches("mlp", 12, 8):
        with surestep.step():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rank::2].to("xla")), y[rank::2].to("xla")).backward()
            if how == "plain":
                optimizer.step()
            else:
                xm.optimizer_step(optimizer)
    return [p.detach().cpu() for p in model.parameters()]
