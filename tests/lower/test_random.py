"""Random operations: what PyTorch says of each distribution, its range and its moments, at fixed keys."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.stats
import torch
from checks import to_jax
from elementwise import Elementwise

from surestep.execute import dtypes
from surestep.lower.random import TABLE
from surestep.lower.spec import Out

aten = torch.ops.aten
COUNT = 20_000
LIKE = torch.empty(COUNT)
HALVES = torch.full((7,), 0.5)
GENERATOR = torch.Generator()

# Here only shape and dtype are compared; one call for every overload.
FAMILY = Elementwise(
    "random",
    unreached=("_fused_dropout.default",),  # no kernel on the CPU; tests/tensor/test_generators.py draws it
    cases={
        "rand.default": lambda: torch.rand(3, 2),
        "rand.generator": lambda: torch.rand(3, generator=GENERATOR, dtype=torch.complex64),
        "rand_like.default": lambda: torch.rand_like(HALVES, dtype=torch.bfloat16),
        "rand_like.generator": lambda: aten.rand_like.generator(HALVES, generator=GENERATOR),
        "randn.default": lambda: torch.randn(3, dtype=torch.float64),
        "randn.generator": lambda: torch.randn(3, generator=GENERATOR, dtype=torch.complex64),
        "randn_like.default": lambda: torch.randn_like(HALVES.half()),
        "randn_like.generator": lambda: aten.randn_like.generator(HALVES, generator=GENERATOR),
        "randint.default": lambda: torch.randint(5, (3,)),
        "randint.generator": lambda: torch.randint(5, (3,), generator=GENERATOR, dtype=torch.uint8),
        "randint.low": lambda: torch.randint(-5, 5, (3,), dtype=torch.float32),
        "randint.low_generator": lambda: torch.randint(-5, 5, (3,), generator=GENERATOR),
        "randint_like.default": lambda: torch.randint_like(HALVES, 5),
        "randint_like.generator": lambda: aten.randint_like.generator(HALVES, 5, generator=GENERATOR),
        "randint_like.Tensor": lambda: aten.randint_like.Tensor(HALVES, torch.tensor(5)),
        "randint_like.Tensor_generator": lambda: aten.randint_like.Tensor_generator(HALVES, torch.tensor(5), generator=GENERATOR),
        "randint_like.low_dtype": lambda: torch.randint_like(HALVES, -5, 5, dtype=torch.int8),
        "randint_like.low_generator_dtype": lambda: aten.randint_like.low_generator_dtype(HALVES, -5, 5, generator=GENERATOR),
        "randperm.default": lambda: [torch.randperm(5), torch.randperm(0), torch.randperm(3, dtype=torch.int32)],
        "randperm.generator": lambda: torch.randperm(5, generator=GENERATOR),
        "uniform.default": lambda: aten.uniform(HALVES, -1.0, 1.0),
        "normal_functional.default": lambda: aten.normal_functional(HALVES.bfloat16(), 1.0, 2.0),
        "normal.Tensor_float": lambda: torch.normal(HALVES, 2.0),
        "normal.float_Tensor": lambda: torch.normal(1.0, HALVES),
        "normal.Tensor_Tensor": lambda: torch.normal(HALVES, HALVES),
        "normal.float_float": lambda: torch.normal(1.0, 2.0, (3, 2)),
        "log_normal.default": lambda: aten.log_normal(HALVES),
        "exponential.default": lambda: aten.exponential(HALVES, 2.0),
        "geometric.default": lambda: [aten.geometric(HALVES, 0.3), aten.geometric(torch.empty(3, dtype=torch.int64), 0.3)],
        "cauchy.default": lambda: aten.cauchy(HALVES),
        "bernoulli.default": lambda: torch.bernoulli(HALVES),
        "bernoulli.p": lambda: aten.bernoulli.p(HALVES, 0.3),
        "bernoulli.Tensor": lambda: aten.bernoulli.Tensor(torch.zeros(7, dtype=torch.int32), HALVES.double()),
        "native_dropout.default": lambda: [aten.native_dropout(HALVES.bfloat16(), 0.3, train) for train in (None, True, False)],
        "native_dropout_backward.default": lambda: aten.native_dropout_backward(HALVES, HALVES > 0, 1.25),
        "rrelu_with_noise_functional.default": lambda: [
            aten.rrelu_with_noise_functional(-HALVES, HALVES, 0.1, 0.3, training) for training in (True, False)
        ],
        "random.default": lambda: [aten.random(torch.empty(3, dtype=d)) for d in (torch.int64, torch.uint8, torch.bool, torch.bfloat16)],
        "random.to": lambda: aten.random.to(HALVES, 7),
        "random.from": lambda: [
            getattr(aten.random, "from")(HALVES, -3, 7),
            getattr(aten.random, "from")(torch.empty(3, dtype=torch.int64), -(2**63), None),
        ],
        "multinomial.default": lambda: [torch.multinomial(HALVES, 3), torch.multinomial(HALVES.expand(2, 7).double(), 9, replacement=True)],
        "poisson.default": lambda: torch.poisson(HALVES),
        "binomial.default": lambda: torch.binomial(HALVES * 20, HALVES),
        "_standard_gamma.default": lambda: aten._standard_gamma(HALVES.double()),
        "_standard_gamma_grad.default": lambda: aten._standard_gamma_grad(HALVES * 3, HALVES),
        "_sample_dirichlet.default": lambda: aten._sample_dirichlet(HALVES.expand(2, 7)),
    },
)


@pytest.mark.parametrize("case", FAMILY.cases)
def test_case(case):
    FAMILY.check_case(case)


def test_keys():
    FAMILY.check_keys()


def draw(name, *args, shape=(COUNT,), dtype=torch.float32, seed=1):
    with jax.enable_x64(True):
        args = [to_jax(a) for a in args]
        return np.asarray(TABLE[name].function(Out(shape, dtypes.to_jax(dtype)), *args, key=jax.random.key(seed)))


CONTINUOUS = {
    "rand": (("rand.default", (COUNT,)), scipy.stats.uniform()),
    "randn": (("randn.default", (COUNT,)), scipy.stats.norm()),
    "uniform": (("uniform.default", LIKE, -2.0, 3.0), scipy.stats.uniform(-2, 5)),
    "normal": (("normal_functional.default", LIKE, 1.0, 2.0), scipy.stats.norm(1, 2)),
    "log_normal": (("log_normal.default", LIKE, 0.5, 0.7), scipy.stats.lognorm(0.7, scale=np.exp(0.5))),
    "exponential": (("exponential.default", LIKE, 2.0), scipy.stats.expon(scale=0.5)),
    "cauchy": (("cauchy.default", LIKE, 1.0, 2.0), scipy.stats.cauchy(1, 2)),
    "gamma": (("_standard_gamma.default", torch.full((COUNT,), 0.7)), scipy.stats.gamma(0.7)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name):
    call, distribution = CONTINUOUS[name]
    assert scipy.stats.kstest(draw(*call), distribution.cdf).pvalue > 1e-3


DISCRETE = {
    "bernoulli": (("bernoulli.p", LIKE, 0.3), scipy.stats.bernoulli(0.3)),
    "geometric": (("geometric.default", LIKE, 0.3), scipy.stats.geom(0.3)),
    "poisson": (("poisson.default", torch.full((COUNT,), 2.5)), scipy.stats.poisson(2.5)),
    "binomial": (("binomial.default", torch.full((COUNT,), 10.0), torch.full((COUNT,), 0.3)), scipy.stats.binom(10, 0.3)),
    "random": (("random.from", LIKE, -2, 3), scipy.stats.randint(-2, 3)),
    "randint": (("randint.low", -2, 3, (COUNT,)), scipy.stats.randint(-2, 3)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name):
    call, distribution = DISCRETE[name]
    drawn = draw(*call)
    values, counts = np.unique(drawn, return_counts=True)
    probabilities = distribution.pmf(values)
    assert (probabilities > 0).all()
    likely = probabilities * COUNT > 10
    spread = np.sqrt(COUNT * probabilities * (1 - probabilities))
    assert (np.abs(counts - COUNT * probabilities)[likely] < 4.5 * spread[likely]).all()


def test_certain_bernoulli():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert not draw("bernoulli.default", torch.zeros(COUNT, dtype=dtype), dtype=dtype).any()
        assert draw("bernoulli.default", torch.ones(COUNT, dtype=dtype), dtype=dtype).all()
    assert draw("bernoulli.p", LIKE, 1.0).all()


def test_the_upper_end_is_left_out():
    for dtype, low, high in ((torch.bfloat16, 1.0, 1.01), (torch.float32, 1e7, 1e7 + 2), (torch.float16, -1.0, 0.0)):
        drawn = draw("uniform.default", LIKE.to(dtype), low, high, dtype=dtype)
        assert (drawn >= np.asarray(low).astype(drawn.dtype)).all() and (drawn < np.asarray(high).astype(drawn.dtype)).all()
    assert (draw("uniform.default", LIKE, 2.0, 2.0) == 2).all()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert (draw("rand.default", (COUNT,), dtype=dtype) < 1).all()


def test_no_exponential_is_zero_and_no_geometric_below_one():
    assert (draw("exponential.default", LIKE, 1e-3) > 0).all()
    assert (draw("geometric.default", LIKE, 1.0) == 1).all()


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (torch.float32, 2**24),
        (torch.bfloat16, 2**8),
        (torch.float16, 2**11),
        (torch.uint8, 255),
        (torch.int8, 127),
        (torch.bool, 1),
        (torch.int64, 2**63),
    ],
)
def test_random_fills_the_range_of_its_dtype(dtype, largest):
    drawn = draw("random.default", torch.empty(COUNT, dtype=dtype), dtype=dtype).astype(np.float64)
    assert drawn.min() >= 0 and drawn.max() <= largest and drawn.max() > largest * 0.99
    assert abs(drawn.mean() / largest - 0.5) < 0.01 and (drawn == np.floor(drawn)).all()


def test_random_fills_the_range_of_int64_from_its_lowest():
    drawn = draw("random.from", torch.empty(COUNT, dtype=torch.int64), -(2**63), None, dtype=torch.int64)
    assert abs((drawn < 0).mean() - 0.5) < 0.02


def test_dropout():
    x = torch.full((COUNT,), 3.0)
    outs = (Out((COUNT,), np.dtype(np.float32)), Out((COUNT,), np.dtype(np.bool_)))
    function = TABLE["native_dropout.default"].function
    with jax.enable_x64(True):
        for p in (0.0, 0.25, 1.0, jax.numpy.asarray(0.25), jax.numpy.asarray(1.0)):
            y, mask = (np.asarray(a) for a in function(outs, to_jax(x), p, True, key=jax.random.key(2)))
            assert abs(mask.mean() - (1 - float(p))) < 0.02
            kept = 3 / (1 - float(p)) if float(p) < 1 else 0
            np.testing.assert_allclose(y, np.where(mask, kept, 0), rtol=1e-6)
        y, mask = function(outs, to_jax(x), 0.5, False, key=jax.random.key(2))
        assert np.asarray(mask).all() and (np.asarray(y) == 3).all()


def test_permutations():
    drawn = draw("randperm.default", 1000, shape=(1000,), dtype=torch.int64)
    assert sorted(drawn) == list(range(1000)) and list(drawn) != list(range(1000))


def test_multinomial_draws_by_weight():
    weights = torch.tensor([1.0, 0.0, 3.0, 6.0, 0.0])
    drawn = draw("multinomial.default", weights, COUNT, True, dtype=torch.int64)
    assert np.abs(np.bincount(drawn, minlength=5) / COUNT - weights.numpy() / 10).max() < 0.015
    rows = draw("multinomial.default", weights.expand(5000, 5), 3, False, shape=(5000, 3), dtype=torch.int64)
    assert (np.sort(rows, axis=1) == [0, 2, 3]).all()
    assert np.abs(np.bincount(rows[:, 0], minlength=5) / 5000 - weights.numpy() / 10).max() < 0.03


def test_dirichlet():
    alpha = torch.tensor([0.5, 1.0, 2.5])
    drawn = draw("_sample_dirichlet.default", alpha.expand(5000, 3), shape=(5000, 3))
    np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(drawn.mean(axis=0), alpha.numpy() / 4, atol=0.02)


def test_complex_normal_has_unit_variance():
    drawn = draw("randn.default", (COUNT,), dtype=torch.complex64)
    assert abs(drawn.real.var() - 0.5) < 0.02 and abs(drawn.imag.var() - 0.5) < 0.02


def test_other_keys_give_other_numbers():
    assert (draw("randn.default", (COUNT,)) == draw("randn.default", (COUNT,))).all()
    assert (draw("randn.default", (COUNT,)) != draw("randn.default", (COUNT,), seed=2)).mean() > 0.99
