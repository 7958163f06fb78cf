"""XlaFullyShardedDataParallel against one process on whole batches."""

import functools
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

import surestep
import surestep.torch_xla.core.xla_model as xm
from parallel.processes import ranks
from surestep.execute.world import World
from surestep.loop import checkpoint
from surestep.torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
    wrap,
)
from torch_xla import fsdp_jobs as jobs

CASES = [
    ("mlp", "always", {"reshard_after_forward": False}, "plain"),
    ("mlp", "size again", {"mark_step_on_finalization": True}, "step"),
    ("frozen", "size", {"disable_reshard_on_root": False, "flatten_parameters": True}, "no_sync"),
    ("cnn", "", {"shard_param_on_dim_0": True}, "clip inf"),
    ("transformer", "layers", {"flatten_parameters": True}, "step"),
    ("language", "embedding", {"execute_sharding_on_init": False}, "clip 2"),
    ("reentrant", "", {"flatten_parameters": True, "disable_reshard_on_root": False}, "step"),
    ("not reentrant", "", {"disable_reshard_on_root": False}, "step"),
]


def check(case, found):
    kind, _, options, style = case
    norm = float(style.split()[1]) if style.startswith("clip") else None
    expected, norms = jobs.alone(kind, None if norm is None else (0.3, norm))
    whole = consolidate_sharded_state_dicts([rank["state"] for rank in found], found[0]["metadata"])
    assert whole.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{case} {name}: {text}")
    for rank in found:
        assert rank["norms"] == pytest.approx(norms, rel=1e-4)
        programs = 2 if options.get("mark_step_on_finalization") else 1  # a step
        assert rank["counts"] == (programs * jobs.steps(kind), programs), case
    model = jobs.network(kind).eval()
    model.load_state_dict(whole)
    torch.testing.assert_close(found[0]["evaluated"], model(jobs.batches(kind)[0][0]).detach(), rtol=1e-4, atol=1e-5)


def test_it_is_one_process_on_the_whole_batch(tmp_path):
    results = ranks(jobs.fsdp, CASES, directory=tmp_path)
    for case, *found in zip(CASES, *results, strict=True):
        check(case, found)


def test_four_processes(tmp_path):
    groups = [[0, 2], [1, 3]]
    results = ranks(jobs.four, groups, count=4, directory=tmp_path)
    for group in groups:  # each is a training of its own
        states = [results[rank]["state"] for rank in group]
        whole = consolidate_sharded_state_dicts(states, results[group[0]]["metadata"])
        expected, _ = jobs.alone("frozen")
        for name, value in expected.items():
            torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-5)
    for found in results:  # parameters, gradients and momentum: a fourth of each
        (held, again), (_, kept) = found["memory"]
        assert held == pytest.approx(3 * jobs.BYTES / 4, rel=0.01)
        assert again < kept  # in the program few whole parameters live at a time, where they are gathered again


def save(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def train(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.scale


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x):
        return x * self.scale


class TestOneProcess:
    def wrapped(self, *modules, **options):
        return XlaFullyShardedDataParallel(nn.Sequential(*(modules or (nn.Linear(3, 4), nn.Linear(4, 2)))), **options)

    def test_names_and_shapes_are_torch_xlas(self):
        model = self.wrapped(XlaFullyShardedDataParallel(nn.Linear(3, 4)), nn.Linear(4, 2, bias=False))
        inner = "_fsdp_shard_FSDP_SHARD_SEPARATOR__fsdp_wrapped_module_FSDP_SHARD_SEPARATOR__fpw_module_FSDP_SHARD_SEPARATOR_"
        assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
            f"{inner}1_FSDP_SHARD_SEPARATOR_weight": (128,),
            f"_fsdp_wrapped_module.0.{inner}weight": (128,),
            f"_fsdp_wrapped_module.0.{inner}bias": (128,),
        }
        names = [name for name, _ in model.get_original_names_and_sharded_parameters()]
        assert names == ["1.weight", "0.weight", "0.bias"]
        rows = self.wrapped(shard_param_on_dim_0=True)
        assert [tuple(part.shape) for part in rows.parameters()] == [(4, 3), (4,), (2, 4), (2,)]

    def test_it_passes_on_what_it_hasnt(self):
        model = self.wrapped()
        assert model[1].out_features == 2 and len(model.module) == 2 and "bias=True" in repr(model)
        with pytest.raises(AttributeError, match="nonsense"):
            model.nonsense
        assert model[0].weight.numel() == 0  # outside of a forward pass there is none

    def test_what_is_computed_in_half_precision(self):
        torch.manual_seed(0)
        model = self.wrapped(nn.Linear(3, 4), Scaled(), compute_dtype=torch.bfloat16, fp32_reduce_scatter=True)
        x = torch.randn(8, 3)
        y = model(x.to("xla"))
        y.float().square().mean().backward()
        torch.manual_seed(0)
        expected = nn.Sequential(nn.Linear(3, 4), Scaled())
        z = expected.to(torch.bfloat16)(x.bfloat16())
        z.float().square().mean().backward()
        torch.testing.assert_close(y.cpu(), z, rtol=2e-2, atol=2e-2)
        for part, whole in zip(model.parameters(), expected.parameters(), strict=True):
            assert part.dtype is part.grad.dtype is torch.float32
            torch.testing.assert_close(part.grad.cpu()[: whole.numel()], whole.grad.float().flatten(), rtol=5e-2, atol=2e-2)
        state = consolidate_sharded_state_dicts([model.state_dict()], model.get_shard_metadata())
        assert model[1].scale.dtype is torch.bfloat16 and state["1.scale"].dtype is torch.float32

    def test_meta(self):
        class Filled(nn.Linear):
            def reset_parameters(self):
                nn.init.ones_(self.weight)

        with torch.device("meta"):
            model = Filled(3, 2, bias=False)
        ones = XlaFullyShardedDataParallel(model)(torch.ones(1, 3, device="xla"))
        assert ones.tolist() == [[3.0, 3.0]]
        with torch.device("meta"):
            model = nn.Sequential(Filled(3, 2, bias=False), nn.Sequential(Filled(2, 1, bias=False)))
        model[1] = XlaFullyShardedDataParallel(model[1])  # what is filled there isn't emptied again
        assert XlaFullyShardedDataParallel(model)(torch.ones(1, 3, device="xla")).tolist() == [[6.0]]
        with torch.device("meta"):
            model = Bare()
        with pytest.raises(RuntimeError, match=r"Bare is on meta and has no reset_parameters\(\): say how it is filled with param_init_fn"):
            XlaFullyShardedDataParallel(model)
        filled = XlaFullyShardedDataParallel(model, param_init_fn=lambda module: module.to_empty(device="xla").scale.data.fill_(3.0))
        assert filled(torch.ones(1, device="xla")).tolist() == [3.0]

    def test_a_step_between_forward_and_backward_is_said(self):
        model = self.wrapped(disable_reshard_on_root=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.randn(2, 3, device="xla").requires_grad_()).sum()
        for part in model.parameters():
            part.grad = torch.ones_like(part)
        optimizer.step()
        with pytest.raises(RuntimeError, match=r"needs sharded parameters .* call backward before optimizer.step"):
            loss.backward()

    def test_an_optimizer_made_before_is_said(self):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        XlaFullyShardedDataParallel(model)
        with pytest.raises(RuntimeError, match="make it afterwards"):
            optimizer.step()

    def test_gradients_reduced_twice_are_said(self):
        model = self.wrapped()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for function in (xm.optimizer_step, xm.reduce_gradients):
            with pytest.raises(RuntimeError, match=r"were reduced in the backward pass: write optimizer.step\(\)"):
                function(optimizer)

    def test_clipping_by_a_part_is_said(self):
        model = self.wrapped()
        model(torch.ones(2, 3, device="xla")).sum().backward()
        with pytest.raises(RuntimeError, match=r"write model\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(nn.Linear(3, 2).parameters(), 1.0)
        assert model.clip_grad_norm_(1.0).isfinite()

    def test_what_would_lose_parts_is_said(self, monkeypatch, tmp_path):
        model = self.wrapped()
        with pytest.raises(RuntimeError, match="all processes would get the master's parts"):
            xm.broadcast_master_param(model)
        xm.save({"model": model.state_dict()}, tmp_path / "one.pth")  # one process has all
        monkeypatch.setattr(checkpoint, "world", lambda: World(0, 2, 0, 2))
        with pytest.raises(RuntimeError, match="by the master alone: it has a part only"):
            xm.save({"model": model.state_dict()}, tmp_path / "two.pth")

    def test_a_state_is_loaded(self):
        model, other = self.wrapped(), self.wrapped()
        other.load_state_dict(torch.load(save(model.state_dict()), weights_only=True))
        x = torch.randn(2, 3, device="xla")
        assert torch.equal(model(x).cpu(), other(x).cpu())

    def test_a_compiled_step_is_the_same(self):
        """It isn't replayed, and trains as the recorded one does."""
        models = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        results = []
        for module, function in zip(models, (train, surestep.compile(train)), strict=True):
            model = XlaFullyShardedDataParallel(module)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number in range(5):
                function(model, optimizer, torch.full((2, 3), float(number), device="xla"))
            results.append([part.detach().cpu() for part in model.parameters()])
        for recorded, compiled in zip(*results, strict=True):
            torch.testing.assert_close(recorded, compiled)

    def test_second_derivatives_are_refused(self):
        model = self.wrapped()
        loss = model(torch.randn(2, 3, device="xla")).square().sum()
        (gradient, *_) = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"compute_dtype": torch.float64}, ValueError, "compute_dtype must be one of torch.float32, torch.float16, torch.bfloat16"),
            ({"buffer_dtype": torch.int8}, ValueError, "buffer_dtype must be one of"),
            ({"sharding_groups": [[0]]}, ValueError, "needs sharding_rank and sharding_world_size"),
            (
                {"sharding_groups": [[0]], "sharding_rank": 1, "sharding_world_size": 1},
                ValueError,
                "sharding_rank=1, and it is 0 of rank 0",
            ),
            ({"sharding_world_size": 2}, ValueError, r"sharding_world_size=2, and it is 1 of rank 0 with 1 process"),
            ({"sharding_groups": [[0, 1]], "sharding_rank": 0, "sharding_world_size": 2}, ValueError, "name replicas that aren't there"),
            ({"sharding_groups": 3, "sharding_rank": 0, "sharding_world_size": 1}, TypeError, r"must be lists of replicas' ordinals"),
            ({"no_such_option": 1}, TypeError, "no_such_option"),
            *(
                ({"auto_wrap_policy": policy}, TypeError, r"can't be called with module=, .*transformer_layer_cls={\.\.\.}")
                for policy in (nn.Linear, {nn.Linear}, "always", wrap.transformer_auto_wrap_policy, lambda layer: True)
            ),
            ({"auto_wrap_policy": wrap.always_wrap_policy, "auto_wrapper_callable": "x"}, TypeError, "auto_wrapper_callable='x' can't be"),
            ({"param_init_fn": 3}, TypeError, "param_init_fn=3 can't be called"),
            *(({"_shard_size_multiple": size}, ValueError, "a whole number of elements, from 1 on") for size in (0, "a")),
        ],
    )
    def test_wrong_options(self, options, error, message):
        with pytest.raises(error, match=message):
            self.wrapped(**options)

    @pytest.mark.parametrize(
        ("make", "options", "message"),
        [
            (lambda: XlaFullyShardedDataParallel(nn.Linear(1, 1)), {}, "already"),
            (lambda: nn.ModuleList([nn.Linear(1, 1)]), {}, r"ModuleList has no forward\(\)"),
            (lambda: nn.Sequential(XlaFullyShardedDataParallel(nn.Linear(1, 1))), {"auto_wrap_policy": wrap.always_wrap_policy}, "use the"),
            *((lambda given=given: given, {}, "takes a module, and this is") for given in ("x", None, nn.Linear)),
            (lambda: nn.Linear(1, 1).double(), {}, "only float32 parameters can be sharded: weight is torch.float64"),
        ],
    )
    def test_wrong_modules(self, make, options, message):
        with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
            XlaFullyShardedDataParallel(make(), **options)

    def test_an_inner_one_isnt_the_outermost(self):
        model = self.wrapped(XlaFullyShardedDataParallel(nn.Linear(3, 4)))
        with pytest.raises(RuntimeError, match="call it on the outermost"):
            model[0].clip_grad_norm_(1.0)
        with pytest.raises(RuntimeError, match="call it on the outermost"), model[0].no_sync():
            pass

    def test_policies(self):
        def wrapped(policy):
            model = nn.Sequential(nn.Linear(4, 4), nn.ModuleList([nn.Linear(8, 8)]), nn.MultiheadAttention(8, 2))
            _, count = wrap.recursive_wrap(model, policy, lambda module: nn.Sequential(module), [], [], only_wrap_children=True)
            found = [name for name, module in model.named_modules() if type(module) is nn.Sequential and name]
            return found, count

        size = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=30)
        assert wrapped(size) == (["1.0"], 72)
        assert wrapped(functools.partial(size, exclude_wrap_modules={nn.Linear}, force_leaf_modules={nn.ModuleList}))[0] == ["2"]
        assert wrapped(wrap.always_wrap_policy)[0] == ["0", "1", "1.0.0", "2", "2.0.out_proj"]
        assert wrapped(functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.ModuleList}))[0] == ["1"]
        assert wrapped(functools.partial(wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: m.__class__ is nn.Linear))[0] == ["0", "1.0"]


class TestConsolidation:
    def save(self, directory, world=2, missing=()):
        """What ``world`` processes would have saved, by torch_xla's names."""
        name = "_fsdp_shard_FSDP_SHARD_SEPARATOR__fsdp_wrapped_module_FSDP_SHARD_SEPARATOR__fpw_module_FSDP_SHARD_SEPARATOR_weight"
        whole = torch.arange(6.0).reshape(2, 3)
        padded = torch.cat([whole.flatten(), torch.zeros(2)]).chunk(world)
        info = {"_orig_size": whole.shape, "_orig_name": "_fsdp_wrapped_module._fpw_module.weight"}
        for rank in set(range(world)) - set(missing):
            metadata = {"shard_info": {"": {name: info}}, "flatten_info": {}, "buffer_info": {}, "world_size": world, "rank": rank}
            state = {name: padded[rank], "_fsdp_wrapped_module.mean": torch.ones(1)}
            torch.save({"model": state, "shard_metadata": metadata}, directory / f"model-{rank}.pth")
        return whole

    def test_the_command(self, tmp_path):
        whole = self.save(tmp_path)
        surestep = [sys.executable, "-m", "surestep", "run", "-m", "torch_xla.distributed.fsdp.consolidate_sharded_ckpts"]
        done = subprocess.run([*surestep, "--ckpt_prefix", tmp_path / "model-"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"saved {tmp_path}/model-_consolidated.pth\n"
        state = torch.load(tmp_path / "model-_consolidated.pth", weights_only=True)["model"]
        assert state.keys() == {"weight", "mean"} and torch.equal(state["weight"], whole)

    def test_files_that_arent_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no files match"):
            consolidate_sharded_model_checkpoints(f"{tmp_path}/model-")
        self.save(tmp_path, missing=[0])
        with pytest.raises(ValueError, match=r"1 file\(s\) match .*, of rank\(s\) \[1\], and the model was sharded over 2 processes"):
            consolidate_sharded_model_checkpoints(f"{tmp_path}/model-")
