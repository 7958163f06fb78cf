"""Generators: surestep's own is accepted wherever PyTorch takes one for the device, and the CPU's seeds."""

import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import surestep
from surestep.tensor import generator as generators

FIVE = (5,)


def on(value):
    return torch.full(FIVE, value, device="xla")


DRAWS = {
    "rand": lambda g: torch.rand(FIVE, device="xla", generator=g),
    "randn": lambda g: torch.randn(FIVE, device="xla", generator=g),
    "randint": lambda g: torch.randint(100, FIVE, device="xla", generator=g),
    "randint low": lambda g: torch.randint(-100, 100, FIVE, device="xla", generator=g),
    "randperm": lambda g: torch.randperm(20, device="xla", generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, FIVE, device="xla", generator=g),
    "normal of tensors": lambda g: torch.normal(on(0.0), on(1.0), generator=g),
    "rand_like": lambda g: torch.rand_like(on(0.0), generator=g),
    "randn_like": lambda g: torch.randn_like(on(0.0), generator=g),
    "randint_like": lambda g: torch.randint_like(on(0.0), 1000, generator=g),
    "rand out": lambda g: torch.rand(FIVE, generator=g, out=on(0.0)),
    "uniform_": lambda g: on(0.0).uniform_(generator=g),
    "normal_": lambda g: on(0.0).normal_(generator=g),
    "log_normal_": lambda g: on(0.0).log_normal_(generator=g),
    "cauchy_": lambda g: on(0.0).cauchy_(generator=g),
    "exponential_": lambda g: on(0.0).exponential_(generator=g),
    "geometric_": lambda g: on(0.0).geometric_(0.05, generator=g),
    "random_": lambda g: on(0.0).random_(generator=g),
    "random_ to": lambda g: on(0.0).random_(1000, generator=g),
    "random_ from": lambda g: on(0.0).random_(-1000, 1000, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((50,), 0.5, device="xla"), generator=g),
    "bernoulli_": lambda g: torch.empty(50, device="xla").bernoulli_(0.5, generator=g),
    "bernoulli_ of tensor": lambda g: torch.empty(50, device="xla").bernoulli_(torch.full((50,), 0.5, device="xla"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device="xla"), 10, generator=g),
    "multinomial replaced": lambda g: torch.multinomial(torch.ones(50, device="xla"), 10, replacement=True, generator=g),
    "poisson": lambda g: torch.poisson(on(100.0), generator=g),
    "binomial": lambda g: torch.binomial(on(100.0), on(0.5), generator=g),
    "_standard_gamma": lambda g: torch._standard_gamma(on(1.0), generator=g),
    "_sample_dirichlet": lambda g: torch._sample_dirichlet(on(1.0), generator=g),
    "rrelu": lambda g: torch.ops.aten.rrelu_with_noise(on(-1.0), on(0.0), 0.1, 0.9, True, g),
    "dropout": lambda g: torch._fused_dropout(torch.ones(50, device="xla"), 0.5, g)[0],
}
# without `sparse_`, which takes the places of its zeros from the CPU's own generator, whatever it is given
INITIALIZERS = [
    name
    for name, function in inspect.getmembers(nn.init, inspect.isfunction)
    if name.endswith("_") and name != "sparse_" and not name.startswith("_") and "generator" in inspect.signature(function).parameters
]


def initialized(name, generator):
    return getattr(nn.init, name)(torch.empty(6, 6, device="xla"), generator=generator)


for _name in INITIALIZERS:
    DRAWS[f"nn.init.{_name}"] = lambda g, name=_name: initialized(name, g)


def test_every_initializer_that_takes_a_generator_is_drawn():
    assert {"uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "kaiming_normal_", "orthogonal_"} <= set(INITIALIZERS)


@pytest.mark.parametrize("make", [surestep.Generator, torch.Generator])
@pytest.mark.parametrize("name", DRAWS)
def test_its_state_decides_and_goes_on(name, make):
    draw = DRAWS[name]
    before = torch.xla.get_rng_state()
    generator = make().manual_seed(3)
    first, second = draw(generator).cpu(), draw(generator).cpu()
    generator.manual_seed(3)
    surestep.sync()
    assert torch.equal(draw(generator).cpu(), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.xla.get_rng_state(), before), "the device's own generator was moved"


def test_it_is_a_torch_generator_of_the_device():
    generator = surestep.Generator("xla:0")
    assert isinstance(generator, torch.Generator) and generator.device == torch.device("xla:0")
    assert surestep.Generator().initial_seed() != surestep.Generator().initial_seed()
    assert generator.manual_seed(-1) is generator and generator.initial_seed() == 2**64 - 1
    assert generator.seed() == generator.initial_seed()
    with pytest.raises(RuntimeError, match=r"use torch\.Generator"):
        surestep.Generator("cpu")


def drawn(generator):
    return torch.rand(4, device="xla", generator=generator).tolist()


def test_state_and_offset_can_be_read_and_set():
    generator = surestep.Generator().manual_seed(7)
    first = drawn(generator)
    state, offset = generator.get_state(), generator.get_offset()
    second = drawn(generator)
    assert drawn(generator.set_state(state)) == second
    generator.set_offset(offset)
    assert drawn(generator) == second
    generator.set_offset(0)
    assert drawn(generator) == first
    with pytest.raises(RuntimeError, match="16 bytes"):
        generator.set_state(torch.Generator().get_state())
    with pytest.raises(RuntimeError, match="offset"):
        generator.set_offset(-1)


@pytest.mark.parametrize("copied", [lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy, copy.copy, lambda g: g.clone_state()])
def test_a_copy_goes_on_from_the_same_place_by_itself(copied):
    generator = surestep.Generator().manual_seed(7)
    drawn(generator)
    other = copied(generator)
    assert other.device == generator.device
    assert drawn(other) == drawn(generator)
    drawn(other)
    assert drawn(other) != drawn(generator)


def test_graphsafe_state_is_shared():
    generator = surestep.Generator().manual_seed(7)
    shared = generator.graphsafe_get_state()
    numbers = [drawn(generator), drawn(shared), drawn(generator)]
    generator.manual_seed(7)
    assert numbers == [drawn(generator) for _ in range(3)]


@pytest.mark.parametrize(
    "use",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.ones(3).normal_(generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.utils.data.random_split(range(5), [2, 3], generator=g),
        lambda g: list(torch.utils.data.DataLoader(torch.arange(4), shuffle=True, generator=g)),
    ],
)
def test_the_cpu_refuses_it_as_it_refuses_cudas(use):
    with pytest.raises(RuntimeError, match=r"Expected a 'cpu' (device type for generator|generator device) but found 'xla"):
        use(surestep.Generator())


def test_it_serves_where_the_default_device_is_xla():
    with torch.device("xla"):
        first = torch.utils.data.random_split(range(50), [20, 30], generator=surestep.Generator().manual_seed(1))[0].indices
        second = torch.utils.data.random_split(range(50), [20, 30], generator=surestep.Generator().manual_seed(1))[0].indices
    assert first == second and sorted(first) != first


def test_a_generator_of_another_device_is_refused():
    """In a process of its own, which has two devices."""
    program = "import torch, surestep\ntorch.rand(3, device='xla', generator=surestep.Generator('xla:1'))"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "CPU_NUM_DEVICES": "2"}, capture_output=True, text=True)
    assert "RuntimeError: Expected a generator for xla:0 but found one for xla:1" in done.stderr
    with pytest.raises(RuntimeError, match="invalid device ordinal: xla:3"):
        surestep.Generator("xla:3")


def test_it_is_forgotten_with_its_last_reference():
    gc.collect()
    before = len(generators._generators)
    generator = surestep.Generator()
    drawn(generator)
    assert len(generators._generators) == before + 1
    del generator
    gc.collect()
    assert len(generators._generators) == before
