"""Models trained over all devices, held against CPU eager PyTorch; and what the devices tell each other meanwhile."""

from __future__ import annotations

import collections
import copy
import functools
import re

import numpy as np
import pytest
import torch
from torch import nn

import surestep
import surestep.torch_xla.distributed.spmd as xs
from surestep.tensor.devices import recorders
from surestep.torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from surestep.torch_xla.experimental.scan_layers import scan_layers
from surestep.torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

COLLECTIVES = re.compile(r"= \(?(\w+\[[\d,]*\]).* (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def collectives() -> list[tuple[str, str]]:
    """The (shape, kind) of each collective in the program that ran last."""
    return COLLECTIVES.findall(recorders()[0].ran.executable.as_text())


def kinds() -> dict[str, int]:
    return dict(collections.Counter(kind for _, kind in collectives()))


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 32, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(8 * 16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def losses(model, batches, loss_of, optimizer_of, place=lambda batch: batch, steps=None):
    """Trains; the loss of each step."""
    optimizer = optimizer_of(model.parameters())
    found = []
    for batch in batches:
        given = place(batch)
        with surestep.step():
            optimizer.zero_grad()
            loss = loss_of(model, given)
            loss.backward()
            optimizer.step()
        found.append(loss.item())
    return found, optimizer


def next_token(model, batch):
    return nn.functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def text(steps: int = 4) -> list[torch.Tensor]:
    return [torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(step)) for step in range(steps)]


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3, eps=1e-4)  # of a bias whose true gradient is zero, a smaller one would make noise count


def made(kind=GPT):
    torch.manual_seed(1)
    return kind().double()


def same(model, truth):
    for (name, theirs), ours in zip(truth.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9, msg=lambda message, name=name: f"{name}: {message}")


def split_batch(mesh, axis, dtype=None):
    def place(batch):
        return xs.mark_sharding(batch.to("xla"), mesh, (axis, *[None] * (batch.ndim - 1)))

    return place


def trained_as_on_the_cpu(model, mesh, axis, metrics, kind=GPT, batches=None, loss_of=next_token, optimizer_of=adamw):
    truth = made(kind)
    batches = text() if batches is None else batches
    expected, _ = losses(truth, batches, loss_of, optimizer_of)
    surestep.sync()
    before = metrics().compile.count
    found, optimizer = losses(model, batches, loss_of, optimizer_of, split_batch(mesh, axis))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    same(model, truth)
    assert metrics().compile.count - before == 1
    return optimizer


def test_data_parallel(devices, metrics):
    """The gradients' sum is all that the devices tell each other."""
    mesh = xs.get_1d_mesh("data")
    model = made().to("xla")
    trained_as_on_the_cpu(model, mesh, "data", metrics)
    assert kinds().keys() == ({"all-reduce"} if devices > 1 else set())
    assert {parameter.sharding_spec for parameter in model.parameters()} <= {"{replicated}", ""}


def test_batch_norm_sees_the_whole_batch(devices, metrics):
    images = [torch.randn(8, 3, 8, 8, dtype=torch.float64) for _ in range(3)]
    model = made(Convolutions).to("xla")
    trained_as_on_the_cpu(
        model, xs.get_1d_mesh("data"), "data", metrics, Convolutions, images, lambda model, x: model(x).square().mean(),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    )  # fmt: skip
    torch.testing.assert_close(model.body[1].running_var.cpu().mean() > 0, torch.tensor(True))


def test_fsdp(devices, metrics):
    """Each matrix is gathered once; parameters, gradients and the optimizer's state are split, and stay so."""
    mesh = xs.Mesh(np.arange(devices), (devices, 1), ("fsdp", "tensor"))
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = SpmdFullyShardedDataParallel(made(), mesh=mesh, auto_wrap_policy=policy)
    optimizer = trained_as_on_the_cpu(model, mesh, "fsdp", metrics)
    if devices == 1:
        assert collectives() == []
        return
    for name, parameter in model.named_parameters():
        part = max(parameter.shape) // devices
        states = [state for state in optimizer.state[parameter].values() if state.shape == parameter.shape]
        assert len(states) == 2
        for tensor in (parameter, parameter.grad, *states):
            shape = tensor.local_shards[0].data.shape
            assert part in shape and shape.numel() * devices == parameter.numel(), (name, shape)
    weights = {f"f64[{','.join(map(str, size))}]" for p in model.parameters() for size in (p.shape, p.shape[::-1])}
    gathered = [shape for shape, kind in collectives() if kind == "all-gather"]
    assert set(gathered) <= weights
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    assert len([shape for shape in gathered if "," in shape]) == len(matrices)


def test_fsdp_wraps_and_refuses_as_torch_xla_does(devices):
    mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
    wrapped = SpmdFullyShardedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), mesh=mesh)
    assert wrapped.module[0] is wrapped[0]
    assert wrapped[0].weight.device.type == "xla"
    with pytest.raises(RuntimeError, match="wrapped already"):
        SpmdFullyShardedDataParallel(wrapped, mesh=mesh)
    with pytest.raises(RuntimeError, match="ModuleList has no forward"):
        SpmdFullyShardedDataParallel(nn.ModuleList(), mesh=mesh)
    with pytest.raises(ValueError, match="none is named 'fsdp'"):
        SpmdFullyShardedDataParallel(nn.Linear(8, 8), mesh=xs.get_1d_mesh("x"))
    with pytest.raises(ValueError, match="no mesh"):
        SpmdFullyShardedDataParallel(nn.Linear(8, 8))
    with pytest.raises(ValueError, match="none is named 'dcn'"):
        SpmdFullyShardedDataParallel(nn.Linear(8, 8), mesh=mesh, extra_data_axis="dcn")

    class Two(nn.Module):
        def forward(self, x):
            return {"a": "text", "x": x}

    with pytest.raises(RuntimeError, match=r"no tensor at first\. Give shard_output="):
        SpmdFullyShardedDataParallel(Two(), mesh=mesh)(torch.randn(8, 8, device="xla"))
    seen = []
    SpmdFullyShardedDataParallel(Two(), mesh=mesh, shard_output=lambda output, mesh: seen.append(mesh))(torch.randn(8, 8, device="xla"))
    assert seen == [mesh]


def shard_by_heads(model, mesh, axis, other=None):
    """Megatron's split: what makes features by columns, what adds them up by rows."""
    for block in model.blocks:
        for grown in (block.qkv, block.up):
            xs.mark_sharding(grown.weight, mesh, (axis, other))
            xs.mark_sharding(grown.bias, mesh, (axis,))
        for shrunk in (block.out, block.down):
            xs.mark_sharding(shrunk.weight, mesh, (other, axis))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def test_tensor_parallel_sums_twice_a_block(devices, metrics):
    mesh = xs.get_1d_mesh("model")
    model = made(lambda: nn.Sequential(MLP(), MLP())).to("xla")
    for block in model:
        xs.mark_sharding(block.up.weight, mesh, ("model", None))
        xs.mark_sharding(block.up.bias, mesh, ("model",))
        xs.mark_sharding(block.down.weight, mesh, (None, "model"))
    batches = [torch.randn(8, 32, dtype=torch.float64) for _ in range(3)]
    trained_as_on_the_cpu(
        model, mesh, None, metrics, lambda: nn.Sequential(MLP(), MLP()), batches, lambda model, x: model(x).square().mean()
    )
    # forward and backward of each block, but for the backward of the first, whose input wants no gradient
    assert kinds() == ({} if devices == 1 else {"all-reduce": 3})


def test_fsdp_and_tensor_parallel_over_two_axes(devices, metrics):
    second = 2 if devices > 1 else 1
    mesh = xs.Mesh(np.arange(devices), (devices // second, second), ("fsdp", "tensor"))
    model = made().to("xla")
    shard_by_heads(model, mesh, "tensor", "fsdp")
    trained_as_on_the_cpu(model, mesh, "fsdp", metrics)
    weight = model.blocks[0].up.weight
    assert weight.local_shards[0].data.shape == (weight.shape[0] // second, weight.shape[1] // (devices // second))


def test_sequences_are_split(devices, metrics):
    mesh = xs.get_1d_mesh("sequence")

    class Split(GPT):
        def forward(self, x):
            hidden = self.embedding(x)
            if x.device.type == "xla":
                hidden = xs.mark_sharding_with_gradients(hidden, mesh, (None, "sequence", None))
            return self.head(self.blocks(hidden))

    trained_as_on_the_cpu(made(Split).to("xla"), mesh, None, metrics, Split)


class Experts(nn.Module):
    """Tokens go to one of eight experts, each of which takes as many."""

    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.up, self.down = nn.Parameter(torch.randn(8, 16, 32) / 4), nn.Parameter(torch.randn(8, 32, 16) / 4)

    def forward(self, x):
        tokens = x.reshape(8, -1, 16)  # (device, token, feature)
        dispatched = tokens.reshape(8, 8, -1, 16).transpose(0, 1)  # (expert, device, token, feature)
        if self.mesh is not None:
            dispatched = xs.mark_sharding_with_gradients(dispatched.contiguous(), self.mesh, ("expert", None, None, None))
        hidden = torch.relu(torch.einsum("edtf,efh->edth", dispatched, self.up))
        found = torch.einsum("edth,ehf->edtf", hidden, self.down)
        if self.mesh is not None:  # else the experts would be gathered, which is said
            found = xs.mark_sharding_with_gradients(found, self.mesh, ("expert", None, None, None))
        combined = found.transpose(0, 1)
        if self.mesh is not None:
            combined = xs.mark_sharding_with_gradients(combined.contiguous(), self.mesh, ("expert", None, None, None))
        return combined.reshape(x.shape)


def test_experts_get_their_tokens_by_all_to_all(devices, metrics):
    mesh = xs.get_1d_mesh("expert")
    model = made(lambda: Experts(mesh)).to("xla")
    for weight in (model.up, model.down):
        xs.mark_sharding(weight, mesh, ("expert", None, None))
    batches = [torch.randn(64, 4, 16, dtype=torch.float64) for _ in range(3)]
    trained_as_on_the_cpu(model, mesh, "expert", metrics, Experts, batches, lambda model, x: (model(x) - x).square().mean())
    if devices > 1:
        assert kinds().get("all-to-all", 0) >= 2


def test_memory_is_given_back(devices):
    """A step's program takes the memory of what it overwrites: parameters and the optimizer's state, split as they are."""
    mesh = xs.get_1d_mesh("x")
    model = nn.Linear(64, 64, bias=False).to("xla")
    xs.mark_sharding(model.weight, mesh, ("x", None))
    losses(model, [torch.randn(8, 64) for _ in range(3)], lambda model, x: model(x).square().mean(), adamw, split_batch(mesh, "x"))
    assert len(recorders()[0].ran.donated) >= 3


def test_masks_do_not_depend_on_the_devices(devices):
    mesh = xs.get_1d_mesh("x")
    surestep.manual_seed(3)
    mask = nn.functional.dropout(torch.ones(16, 4, device="xla"), 0.5)
    xs.mark_sharding(mask, mesh, ("x", None))
    surestep.manual_seed(3)
    assert torch.equal(nn.functional.dropout(torch.ones(16, 4, device="xla"), 0.5).cpu(), mask.cpu())


def test_checkpoints_of_split_models_are_plain(devices, tmp_path):
    mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
    model = SpmdFullyShardedDataParallel(made(), mesh=mesh)
    torch.save(model.module.state_dict(), tmp_path / "model.pt")
    plain = GPT().double()
    plain.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu", weights_only=True))
    same(model, plain)
    other = SpmdFullyShardedDataParallel(GPT().double(), mesh=mesh)
    specs = [parameter.sharding_spec for parameter in other.parameters()]
    other.module.load_state_dict(plain.state_dict())
    same(other, plain)
    assert [parameter.sharding_spec for parameter in other.parameters()] == specs


@pytest.mark.parametrize("parallel", ["data", "fsdp"])
def test_compiled_steps_are_replayed(devices, metrics, parallel):
    """However a batch lies: it is brought to lie as the first call's did."""
    mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
    truth = made()
    if parallel == "fsdp":
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = SpmdFullyShardedDataParallel(made(), mesh=mesh, auto_wrap_policy=policy)
    else:
        model = made().to("xla")
    theirs, ours = adamw(truth.parameters()), adamw(model.parameters())

    @surestep.compile
    def step(batch):
        xs.mark_sharding(batch, mesh, ("fsdp", None))
        ours.zero_grad()
        loss = next_token(model, batch)
        loss.backward()
        ours.step()
        return loss

    for number, batch in enumerate(text(6)):
        theirs.zero_grad()
        expected = next_token(truth, batch)
        expected.backward()
        theirs.step()
        given = batch.to("xla")
        if number == 4:
            xs.mark_sharding(given, mesh, (None, "fsdp"))
        assert step(given).item() == pytest.approx(expected.item(), rel=1e-9)
        assert tuple(given.local_shards[0].data.shape) == (8 // devices, 16)
    same(model, truth)
    assert metrics().replays == 3
    assert metrics().compile.count <= 1  # an earlier test may have compiled it


def test_launch_is_this_process(devices):
    seen = []
    surestep.launch(lambda index, what: seen.append((index, what)), ("x",))
    assert seen == [(0, "x")]


def test_layers_that_are_scanned_are_split_too(devices, metrics):
    mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))

    class Scanned(GPT):
        def forward(self, x):
            hidden = self.embedding(x)
            if x.device.type == "xla":
                return self.head(scan_layers(self.blocks, hidden))
            return self.head(self.blocks(hidden))

    model = made(lambda: Scanned(layers=4)).to("xla")
    for parameter in model.parameters():
        xs.mark_sharding(parameter, mesh, ("fsdp", *[None] * (parameter.ndim - 1)))
    trained_as_on_the_cpu(model, mesh, "fsdp", metrics, lambda: Scanned(layers=4))
    weight = model.blocks[3].up.weight
    assert weight.local_shards[0].data.shape == (weight.shape[0] // devices, weight.shape[1])


def test_layers_that_are_scanned_lie_as_they_were_marked(devices):
    """A stack of split parameters isn't exchanged between the devices, nor are their gradients put together."""
    second = 2 if devices > 1 else 1
    mesh = xs.Mesh(np.arange(devices), (devices // second, second), ("fsdp", "model"))
    layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3))
    here = copy.deepcopy(layers).to("xla")
    for layer in here:
        xs.mark_sharding(layer[0].weight, mesh, ("model", "fsdp"))
        xs.mark_sharding(layer[2].weight, mesh, ("fsdp", "model"))
    x = torch.randn(64, 4, 16)
    loss = scan_layers(here, xs.mark_sharding(x.to("xla"), mesh, ("fsdp", None, None))).square().mean()
    loss.backward()
    surestep.sync()
    assert not any(kind == "all-to-all" or shape.startswith("f32[3,") for shape, kind in collectives())
    expected = functools.reduce(lambda value, layer: layer(value), layers, x).square().mean()
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected)
    for ours, theirs in zip(here.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)
    assert here[1][0].weight.grad.local_shards[0].data.shape == here[1][0].weight.local_shards[0].data.shape
