"""Random programs under random boundaries against CPU eager: the product's promise. ``make fuzz N=20000`` runs more."""

import pathlib
import random

import changing
import lowered
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program import Machine, differences, generate, run

import surestep

KEPT = pathlib.Path(__file__).with_name("seeds.txt")


def check(r, length, boundaries):
    truth, ours = Machine("cpu", lambda kind: None), Machine("xla", lambda kind: surestep.sync(wait=kind == 1))
    found = run(generate(r, length, boundaries), truth, ours)
    assert not found, found
    surestep.sync()
    assert not (found := differences(truth, ours)), found


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.randoms(use_true_random=False))
def test_random_programs(r):
    check(r, 14, 0.05)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", range(4))
def test_seeded_programs_in_one_trace(group):
    machines = []
    for seed in range(group * 60, group * 60 + 60):
        truth, ours = Machine("cpu", lambda kind: None), Machine("xla", lambda kind: surestep.sync(wait=kind == 1))
        found = run(generate(random.Random(seed), 14, 0.01), truth, ours)
        assert not found, (seed, found)
        machines.append((seed, truth, ours))
    surestep.sync()
    for seed, truth, ours in machines:
        assert not (found := differences(truth, ours)), (seed, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sorted({int(line) for line in KEPT.read_text().split()}) if KEPT.exists() else [])
def test_what_once_differed(seed):
    check(random.Random(seed), 14, 0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(8))
def test_random_compiled_steps(seed):
    found = changing.run(changing.generate(random.Random(seed)), surestep.compile)
    assert not found, found


@pytest.mark.filterwarnings("ignore")
def test_the_comparison_of_steps_sees_a_stale_replay():
    """A compiler that keeps what a function read at first."""
    program = changing.generate(random.Random(0))
    events = ["RESULT = step(DATA[0], TARGETS[0])", "NUMBER = 7.0", "RESULT = step(DATA[0], TARGETS[0])"]
    module = program.module.replace("        h = x\n", "        h = x * NUMBER\n")

    def stale(function):
        return type(function)(function.__code__, dict(function.__globals__), function.__name__, function.__defaults__, function.__closure__)

    assert changing.run(changing.Program(module, events), surestep.compile) == []
    assert "after event 2" in changing.run(changing.Program(module, events), stale)[0]


# What no sample and no operands reach: the CPU has no kernel for them, or another one; tests/lower has tests of their own.
OUT_OF_REACH = {
    "_embedding_bag_dense_backward.default", "_fused_rms_norm_backward.default", "_grouped_mm.default", "_index_put_impl.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "_scaled_dot_product_flash_attention_for_cpu_backward.default",
    "_scaled_mm.default", "_scaled_mm_v2.default", "addmm.dtype", "baddbmm.dtype", "bmm.dtype", "embedding_renorm.default",
    "linear_backward.default", "mm.dtype",
}  # fmt: skip


def test_programs_draw_from_all_that_is_lowered():
    assert set(lowered.names()) - lowered.reached().keys() == OUT_OF_REACH, "python tests/fuzz/lowered.py writes reached.json anew"


def test_the_comparison_sees_a_wrong_value_and_a_lost_alias():
    truth, ours = Machine("cpu", lambda kind: None), Machine("xla", lambda kind: None)
    base, other = torch.ones(3), torch.ones(3, device="xla")
    truth.pool = [base, base[1:]]
    ours.pool = [other, other[1:].clone()]
    assert any("aliases" in what for what in differences(truth, ours))
    other.add_(1)
    assert any("values" in what for what in differences(truth, ours))
