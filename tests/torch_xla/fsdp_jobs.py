"""What the processes of the tests of FSDP and ZeRO do: in a module that they can import."""

import contextlib
import functools
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import surestep
import surestep.torch_xla.core.xla_model as xm
import surestep.torch_xla.distributed.xla_backend  # (makes the backend known)
import surestep.torch_xla.runtime as xr
from surestep.tensor import devices
from surestep.torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, checkpoint_module
from surestep.torch_xla.distributed.fsdp.wrap import (
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from surestep.torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

SIZE = 8
LR = 0.1  # with twice as much PyTorch's own transformer differs by 1e-3 where the rows of the batches come in another order


def steps(kind):
    return 50 if kind in ("mlp", "cnn", "transformer") else 4


class Language(nn.Module):
    """An embedding whose weight is the last layer's too, and a recurrent network."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])[:, -1]


class Recomputed(nn.Module):
    """Layers that are computed again in the backward pass, by PyTorch's own checkpoints."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.head = nn.Linear(6, 5)
        self.reentrant = reentrant

    def forward(self, x):
        x = x.clone().requires_grad_()
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: layer(x).tanh(), x, use_reentrant=self.reentrant)
        return self.head(x)


def network(kind):
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 5))
    if kind == "cnn":
        return nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 5))
    if kind == "transformer":
        layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5))
    if kind == "frozen":
        model = network("mlp")
        model[0].requires_grad_(False)
        return model
    return Language() if kind == "language" else Recomputed(kind == "reentrant")


def batches(kind):
    shape = {"cnn": (1, 4, 4), "transformer": (4, 8), "language": (3,)}.get(kind, (6,))
    torch.manual_seed(1)
    inputs = [torch.randint(5, (SIZE, *shape)) if kind == "language" else torch.randn(SIZE, *shape) for _ in range(steps(kind))]
    return [(x, torch.randint(5, (SIZE,))) for x in inputs]


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def optimizer_of(parameters):
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9)


def alone(kind, clip=None):
    """One process, on the CPU, on whole batches: the parameters, and the norms of the gradients."""
    model = network(kind)
    optimizer = optimizer_of(model.parameters())
    norms = []
    for x, y in batches(kind):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), *clip).item())
        optimizer.step()
    return model.state_dict(), norms


def wrapped(model, wrap, options):
    """``wrap`` names a policy, or what wraps a submodule."""
    policies = {
        "always": always_wrap_policy,
        "size": functools.partial(size_based_auto_wrap_policy, min_num_params=200),
        "layers": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}),
        "layer": functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Sequential)),
        "linear": functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Linear)),
        "embedding": functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, nn.Embedding)),
    }
    if wrap.endswith(" again"):
        options = {**options, "auto_wrapper_callable": lambda m, **kwargs: XlaFullyShardedDataParallel(checkpoint_module(m), **kwargs)}
    return XlaFullyShardedDataParallel(model, auto_wrap_policy=policies.get(wrap.split()[0] if wrap else None), **options)


def fsdp(cases):
    """For each case (kind, wrap, options, style): this rank's checkpoint, the norms, the runs and programs, and the numbers it holds."""
    dist.init_process_group("xla", init_method="xla://")  # for SyncBatchNorm
    return [fsdp_of(*case) for case in cases]


def fsdp_of(kind, wrap, options, style):
    rank, world = xr.global_ordinal(), xr.world_size()
    model = wrapped(nn.SyncBatchNorm.convert_sync_batchnorm(network(kind)), wrap, options)
    optimizer = optimizer_of(model.parameters())
    norms = []
    surestep.clear_metrics()
    for x, y in batches(kind):
        x, y = x[rank::world].to("xla"), y[rank::world].to("xla")
        with surestep.step() if style != "plain" else contextlib.nullcontext():
            optimizer.zero_grad()
            if style == "no_sync":
                half = len(x) // 2
                with model.no_sync():
                    (loss_of(model, x[:half], y[:half]) / 2).backward()
                (loss_of(model, x[half:], y[half:]) / 2).backward()
            else:
                loss_of(model, x, y).backward()
            if style.startswith("clip"):
                norms.append(model.clip_grad_norm_(0.3, float(style.split()[1])))
            optimizer.step()
    metrics = surestep.metrics()
    return {
        "state": {name: value.cpu() for name, value in model.state_dict().items()},
        "metadata": model.get_shard_metadata(),
        "norms": [norm.item() for norm in norms],
        "counts": (metrics.run.count, metrics.compile.count),
        "evaluated": evaluated(model, kind),
    }


def evaluated(model, kind):
    model.eval()
    with torch.no_grad():
        return model(batches(kind)[0][0].to("xla")).cpu()


def four(groups):
    """Each group on the whole batches, as if it were alone; then a network over all."""
    rank = xr.global_ordinal()
    (place,) = (group.index(rank) for group in groups if rank in group)
    model = XlaFullyShardedDataParallel(network("frozen"), sharding_groups=groups, sharding_rank=place, sharding_world_size=2)
    optimizer = optimizer_of(model.parameters())
    for x, y in batches("frozen"):
        with surestep.step():
            optimizer.zero_grad()
            loss_of(model, x[place::2].to("xla"), y[place::2].to("xla")).backward()
            optimizer.step()
    state, metadata = {name: value.cpu() for name, value in model.state_dict().items()}, model.get_shard_metadata()
    del model, optimizer, x, y
    return {"state": state, "metadata": metadata, "memory": [memory(again=True), memory(again=False)]}


LAYERS, WIDTH = 6, 256
BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4


def memory(again):
    """Bytes held between steps, and those that the step's program takes for itself."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
    model = wrapped(layers, "layer", {"reshard_after_forward": again})
    optimizer = optimizer_of(model.parameters())
    for _ in range(2):
        with surestep.step():
            optimizer.zero_grad()
            model(torch.randn(4, WIDTH, device="xla")).square().mean().backward()
            optimizer.step()
    gc.collect()
    program = devices.started()[0].ran
    return xm.get_memory_info()["bytes_used"], program.executable.memory_analysis().temp_size_in_bytes


def zero(cases, directory):
    """For each case (kind, options, style): the parameters, the norms, the runs and programs, and the shapes of the state."""
    dist.init_process_group("xla", init_method="xla://")
    return [zero_of(*case, f"{directory}/{xr.global_ordinal()}.pt") for case in cases]


def zero_of(kind, options, style, path):
    rank, world = xr.global_ordinal(), xr.world_size()

    def made(lr=LR):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(network(kind)).to("xla")
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=lr, momentum=0.9, **options)

    model, optimizer = made()
    norms = []
    surestep.sync()
    surestep.clear_metrics()
    for number, (x, y) in enumerate(batches(kind)):
        x, y = x[rank::world].to("xla"), y[rank::world].to("xla")
        with contextlib.nullcontext() if style == "plain" else surestep.step():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        norms.append(optimizer.grad_norm)
        if style == "saved" and number == 1:  # and go on from what was saved, in others that were made anew
            torch.save((model.state_dict(), optimizer.state_dict()), path)
            model, optimizer = made(lr=5.0)
            parameters, state = torch.load(path, weights_only=True)
            model.load_state_dict(parameters)
            optimizer.load_state_dict(state)
    metrics = surestep.metrics()
    return {
        "state": {name: value.cpu() for name, value in model.state_dict().items()},
        "norms": [norm.item() for norm in norms if norm is not None],
        "counts": metrics.boundaries,
        "shapes": [
            (p.shape, state["momentum_buffer"].shape)
            for p, state in zip(model.parameters(), optimizer.base_optimizer.state.values(), strict=True)
        ],
    }
