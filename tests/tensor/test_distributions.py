"""Every distribution that PyTorch draws from, on the device: the right one, another draw at each call, the same under the same seed."""

import inspect
import itertools

import numpy as np
import pytest
import scipy.stats as stats
import torch
import torch.distributions as D
import torch.nn.functional as F

import surestep

COUNT = 8_000


def filled(value, dtype=torch.float32):
    return torch.full((COUNT,), value, dtype=dtype, device="xla")


def empty(dtype=torch.float32):
    return torch.empty(COUNT, dtype=dtype, device="xla")


CONTINUOUS = {
    "rand": (lambda: torch.rand(COUNT, device="xla"), stats.uniform()),
    "rand float64": (lambda: torch.rand(COUNT, device="xla", dtype=torch.float64), stats.uniform()),
    "rand_like": (lambda: torch.rand_like(empty()), stats.uniform()),
    "uniform_": (lambda: empty().uniform_(-2, 3), stats.uniform(-2, 5)),
    "randn": (lambda: torch.randn(COUNT, device="xla"), stats.norm()),
    "randn_like": (lambda: torch.randn_like(empty(torch.float64)), stats.norm()),
    "normal": (lambda: torch.normal(1.0, 2.0, (COUNT,), device="xla"), stats.norm(1, 2)),
    "normal of tensors": (lambda: torch.normal(filled(1.0), filled(2.0)), stats.norm(1, 2)),
    "normal_": (lambda: empty().normal_(1, 2), stats.norm(1, 2)),
    "log_normal_": (lambda: empty().log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "cauchy_": (lambda: empty().cauchy_(1, 2), stats.cauchy(1, 2)),
    "exponential_": (lambda: empty().exponential_(2), stats.expon(scale=0.5)),
    "_standard_gamma small": (lambda: torch._standard_gamma(filled(0.3)), stats.gamma(0.3)),
    "_standard_gamma large": (lambda: torch._standard_gamma(filled(30.0)), stats.gamma(30)),
    "_sample_dirichlet": (
        lambda: torch._sample_dirichlet(torch.tensor([0.5, 1.0, 2.5], device="xla").expand(COUNT, 3))[:, 0],
        stats.beta(0.5, 3.5),
    ),
    "trunc_normal_": (lambda: torch.nn.init.trunc_normal_(empty(), 1, 2, -1, 2), stats.truncnorm(-1, 0.5, 1, 2)),
    "rrelu": (lambda: -F.rrelu(filled(-1.0), 0.2, 0.6, training=True), stats.uniform(0.2, 0.4)),
    "gumbel_softmax": (lambda: F.gumbel_softmax(torch.zeros(COUNT, 2, device="xla"))[:, 0].logit(), stats.logistic()),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    draw, distribution = CONTINUOUS[name]
    torch.manual_seed(0)
    first, second = draw(), draw()
    assert stats.kstest(first.double().numpy(force=True), distribution.cdf).pvalue > 1e-3
    assert stats.kstest(second.double().numpy(force=True), distribution.cdf).pvalue > 1e-3
    assert (first != second).double().mean().item() > 0.99


DISCRETE = {
    "randint": (lambda: torch.randint(-2, 5, (COUNT,), device="xla"), stats.randint(-2, 5)),
    "randint_like": (lambda: torch.randint_like(empty(), 7), stats.randint(0, 7)),
    "random_": (lambda: empty(torch.uint8).random_(), stats.randint(0, 256)),
    "random_ to": (lambda: empty().random_(7), stats.randint(0, 7)),
    "random_ from": (lambda: empty(torch.int64).random_(-3, 4), stats.randint(-3, 4)),
    "geometric_": (lambda: empty().geometric_(0.3), stats.geom(0.3)),
    "bernoulli": (lambda: torch.bernoulli(filled(0.3)), stats.bernoulli(0.3)),
    "bernoulli_": (lambda: empty().bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli_ of tensor": (lambda: empty().bernoulli_(filled(0.3)), stats.bernoulli(0.3)),
    "poisson small": (lambda: torch.poisson(filled(2.5)), stats.poisson(2.5)),
    "poisson large": (lambda: torch.poisson(filled(60.0)), stats.poisson(60)),
    "binomial": (lambda: torch.binomial(filled(10.0), filled(0.3)), stats.binom(10, 0.3)),
    "binomial large": (lambda: torch.binomial(filled(200.0), filled(0.7)), stats.binom(200, 0.7)),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 0.0, 3.0, 6.0], device="xla"), COUNT, replacement=True),
        stats.rv_discrete(values=([0, 2, 3], [0.1, 0.3, 0.6])),
    ),
    "dropout": (lambda: F.dropout(filled(0.7), 0.3), stats.bernoulli(0.7)),
    "alpha_dropout": (lambda: (F.alpha_dropout(filled(1.0), 0.3, training=True) > 0).long(), stats.bernoulli(0.7)),
    "native_dropout": (lambda: torch.native_dropout(filled(1.0), 0.3, True)[1].long(), stats.bernoulli(0.7)),
}


def chi_square(drawn, distribution):
    """The p-value of a chi-square test over the values that are likely; the others are one class."""
    values, counts = np.unique(drawn, return_counts=True)
    assert (distribution.pmf(values) > 0).all(), "a value was drawn that can't be"
    support = np.arange(distribution.ppf(1e-9), distribution.ppf(1 - 1e-9) + 1)
    expected = distribution.pmf(support) * drawn.size
    observed = np.array([counts[values == value].sum() for value in support])
    likely = expected > 5
    observed, expected = observed[likely], expected[likely]
    rest = drawn.size - expected.sum()
    if rest > 5:
        observed, expected = np.append(observed, drawn.size - observed.sum()), np.append(expected, rest)
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    draw, distribution = DISCRETE[name]
    torch.manual_seed(1)
    first, second = draw(), draw()
    for drawn in (first, second):
        assert chi_square(drawn.double().numpy(force=True), distribution) > 1e-3
    assert not torch.equal(first, second)


def test_multinomial_without_replacement_draws_pairs_by_weight():
    torch.manual_seed(0)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    drawn = torch.multinomial(weights.to("xla").expand(COUNT, 4), 2).cpu()
    pairs = list(itertools.permutations(range(4), 2))
    whole = weights.sum()
    expected = np.array([float(weights[a] / whole * weights[b] / (whole - weights[a])) for a, b in pairs]) * COUNT
    observed = [int(((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum()) for a, b in pairs]
    assert sum(observed) == COUNT and stats.chisquare(observed, expected).pvalue > 1e-3


def test_permutations():
    torch.manual_seed(0)
    orders = [tuple(torch.randperm(3, device="xla").tolist()) for _ in range(600)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert sum(counts) == 600 and stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_dropped_whole(dims):
    torch.manual_seed(0)
    dropped = getattr(F, f"dropout{dims}d")(torch.ones(40, 50, *(3,) * dims, device="xla"), 0.3).cpu().flatten(2)
    assert (dropped == dropped[..., :1]).all()
    kept = dropped[..., 0] != 0
    torch.testing.assert_close(dropped[..., 0][kept], torch.full((int(kept.sum()),), 1 / 0.7))
    assert chi_square(kept.double().numpy().reshape(-1), stats.bernoulli(0.7)) > 1e-3
    alpha = F.feature_alpha_dropout(torch.ones(40, 50, *(3,) * dims, device="xla"), 0.3, training=True).cpu().flatten(2)
    assert (alpha == alpha[..., :1]).all() and alpha[..., 0].unique().numel() == 2


# torch.distributions: parameters for which mean and variance are finite where the distribution has them at all
P = [0.3, 0.6, 0.5]
LOC, SCALE = [0.0, 1.0, -2.0], [1.0, 2.0, 0.5]
ALPHA, BETA = [3.0, 2.0, 8.0], [2.5, 3.0, 4.0]
MATRIX = [[2.0, 0.5], [0.5, 1.0]]
DISTRIBUTIONS = {
    "Bernoulli": (D.Bernoulli, P),
    "Beta": (D.Beta, ALPHA, BETA),
    "Binomial": (lambda p: D.Binomial(10, p), P),
    "Categorical": (D.Categorical, [0.2, 0.3, 0.5]),
    "Cauchy": (D.Cauchy, LOC, SCALE),
    "Chi2": (D.Chi2, ALPHA),
    "ContinuousBernoulli": (D.ContinuousBernoulli, [0.2, 0.7, 0.9]),
    "Dirichlet": (D.Dirichlet, ALPHA),
    "Exponential": (D.Exponential, SCALE),
    "FisherSnedecor": (D.FisherSnedecor, [5.0, 6.0, 9.0], [20.0, 30.0, 40.0]),
    "Gamma": (D.Gamma, ALPHA, BETA),
    "GeneralizedPareto": (D.GeneralizedPareto, LOC, SCALE, [0.1, 0.05, -0.2]),
    "Geometric": (D.Geometric, P),
    "Gumbel": (D.Gumbel, LOC, SCALE),
    "HalfCauchy": (D.HalfCauchy, SCALE),
    "HalfNormal": (D.HalfNormal, SCALE),
    "Independent": (lambda loc, scale: D.Independent(D.Normal(loc, scale), 1), LOC, SCALE),
    "InverseGamma": (D.InverseGamma, [6.0, 7.0, 8.0], BETA),
    "Kumaraswamy": (D.Kumaraswamy, ALPHA, BETA),
    "LKJCholesky": (lambda c: D.LKJCholesky(3, c), [0.5, 1.0, 2.0]),
    "Laplace": (D.Laplace, LOC, SCALE),
    "LogNormal": (D.LogNormal, LOC, [0.5, 0.4, 0.3]),
    "LogisticNormal": (D.LogisticNormal, LOC, SCALE),
    "LowRankMultivariateNormal": (lambda m, f, d: D.LowRankMultivariateNormal(m, f[:, None], d), LOC, SCALE, BETA),
    "MixtureSameFamily": (lambda p, loc, scale: D.MixtureSameFamily(D.Categorical(p), D.Normal(loc, scale)), P, LOC, SCALE),
    "Multinomial": (lambda p: D.Multinomial(10, p), [0.2, 0.3, 0.5]),
    "MultivariateNormal": (D.MultivariateNormal, [0.0, 1.0], MATRIX),
    "NegativeBinomial": (D.NegativeBinomial, ALPHA, P),
    "Normal": (D.Normal, LOC, SCALE),
    "OneHotCategorical": (D.OneHotCategorical, [0.2, 0.3, 0.5]),
    "OneHotCategoricalStraightThrough": (D.OneHotCategoricalStraightThrough, [0.2, 0.3, 0.5]),
    "Pareto": (D.Pareto, SCALE, [6.0, 7.0, 8.0]),
    "Poisson": (D.Poisson, BETA),
    "RelaxedBernoulli": (lambda t, p: D.RelaxedBernoulli(t[0], p), [0.5], P),
    "RelaxedOneHotCategorical": (lambda t, p: D.RelaxedOneHotCategorical(t[0], p), [0.5], [0.2, 0.3, 0.5]),
    "StudentT": (D.StudentT, [10.0, 12.0, 20.0], LOC, SCALE),
    "TransformedDistribution": (
        lambda loc, scale: D.TransformedDistribution(D.Normal(loc, scale), [D.SigmoidTransform(), D.AffineTransform(1, 3)]),
        LOC,
        SCALE,
    ),
    "Uniform": (D.Uniform, [0.0, 1.0], [1.0, 5.0]),
    "VonMises": (D.VonMises, [0.0, 1.0], [1.0, 2.0]),
    "Weibull": (D.Weibull, SCALE, ALPHA),
    "Wishart": (lambda df, m: D.Wishart(df[0], m), [4.0], MATRIX),
}


def test_all_of_pytorchs_distributions_are_here():
    abstract = {D.Distribution, D.ExponentialFamily}
    theirs = {n for n in D.__all__ if inspect.isclass(getattr(D, n)) and issubclass(getattr(D, n), D.Distribution)}
    assert theirs - {kind.__name__ for kind in abstract} == set(DISTRIBUTIONS)


def made(name, device):
    make, *parameters = DISTRIBUTIONS[name]
    leaves = [torch.tensor(parameter, device=device, requires_grad=True) for parameter in parameters]
    return make(*leaves), leaves


def moment(distribution, name):
    """``mean`` or ``variance``; None where the distribution has none."""
    try:
        found = getattr(distribution, name).detach()
    except NotImplementedError:
        return None
    return found if found.isfinite().all() else None


@pytest.mark.filterwarnings("ignore:.*no lowering:UserWarning", "ignore:Singular sample:UserWarning")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sample(name):
    ours, theirs = made(name, "xla")[0], made(name, "cpu")[0]
    torch.manual_seed(0)
    first, second = ours.sample((COUNT,)), ours.sample((COUNT,))
    torch.manual_seed(0)
    again = ours.sample((COUNT,))
    surestep.sync()
    # the draws are the same; what is computed from them may differ in the last bits, as it is another program that computes it
    torch.testing.assert_close(ours.sample((COUNT,)).cpu(), second.cpu(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again.cpu(), first.cpu(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(first, second)
    assert first.device.type == "xla" and not first.requires_grad

    drawn = first.cpu()
    mean, variance = moment(theirs, "mean"), moment(theirs, "variance")
    if mean is not None and variance is not None and name != "VonMises":  # whose mean is one of angles
        spread = (variance / COUNT).sqrt()
        assert ((drawn.mean(0) - mean).abs() <= 5 * spread + 1e-5).all()
        assert ((drawn.var(0) - variance).abs() <= 0.25 * variance + 1e-6).all()
    if not theirs.event_shape and not theirs.support.is_discrete:
        reference = theirs.sample((COUNT,)).double()  # the CPU draws from the same distribution, whatever its cdf is
        for i in np.ndindex(*theirs.batch_shape):
            assert stats.ks_2samp(drawn[:, *i].double(), reference[:, *i]).pvalue > 1e-3

    density = theirs.log_prob(drawn[:100])
    torch.testing.assert_close(ours.log_prob(first[:100]).detach().cpu(), density.detach(), rtol=2e-3, atol=2e-3)


# without Wishart, whose `rsample` overwrites what its own backward needs, on the CPU too
REPARAMETRIZED = [
    name
    for name in DISTRIBUTIONS
    if name != "Wishart" and made(name, "cpu")[0].has_rsample and moment(made(name, "cpu")[0], "mean") is not None
]


@pytest.mark.filterwarnings("ignore:.*no lowering:UserWarning", "ignore:Singular sample:UserWarning")
@pytest.mark.parametrize("name", REPARAMETRIZED)
def test_the_gradient_of_a_sample(name):
    """The mean of many samples has the gradient of the mean."""
    ours, leaves = made(name, "xla")
    theirs, references = made(name, "cpu")
    torch.manual_seed(0)
    ours.rsample((COUNT,)).mean(0).square().sum().backward()
    theirs.mean.square().sum().backward()
    for leaf, reference in zip(leaves, references, strict=True):
        if reference.grad is not None:
            torch.testing.assert_close(leaf.grad.cpu(), reference.grad, rtol=0.1, atol=0.1)


LARGE = {
    "_sample_dirichlet": lambda: torch._sample_dirichlet(torch.ones(50, 3, device="xla")),
    "Dirichlet": lambda: D.Dirichlet(torch.ones(50, 3, device="xla")).sample(),
    "binomial": lambda: torch.binomial(filled(10.0), filled(0.3)),
    "_standard_gamma_grad": lambda: torch.ops.aten._standard_gamma_grad(filled(2.0), filled(1.0)),
    "logcumsumexp": lambda: torch.logcumsumexp(filled(1.0), 0),
    "multi_margin_loss": lambda: slope(F.multi_margin_loss, torch.arange(20, device="xla")),
    "multilabel_margin_loss": lambda: slope(F.multilabel_margin_loss, torch.full((20, 30), -1, device="xla")),
}


def slope(loss, target):
    x = torch.ones(20, 30, device="xla", requires_grad=True)
    loss(x, target).backward()
    return x.grad


@pytest.mark.parametrize("name", LARGE)
def test_operands_too_large_to_ask_the_cpu_stay_on_the_device(name, monkeypatch, metrics):
    """PyTorch has no meta kernel for these, which would say what they give."""
    monkeypatch.setattr("surestep.tensor.on_cpu.LIMIT", 10)
    assert LARGE[name]().isfinite().all().item()
    assert metrics().fallbacks.total() == 0


def test_a_covariance_is_checked_by_a_read_value(metrics, monkeypatch):
    monkeypatch.setenv("SURESTEP_FALLBACK", "error")
    matrix = torch.tensor(MATRIX, device="xla")
    assert D.MultivariateNormal(torch.zeros(2, device="xla"), matrix).sample().shape == (2,)
    assert metrics().fallbacks.total() == 0
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-matrix)


NOT_ONES = {
    "bernoulli": lambda: torch.bernoulli(torch.tensor([2.0, 1.0, -1.0]).to("xla")),
    "bernoulli_": lambda: torch.empty(3, device="xla").bernoulli_(torch.tensor([2.0, 1.0, float("nan")]).to("xla")),
    "poisson": lambda: torch.poisson(torch.tensor([-1.0, 3.0, -2.0]).to("xla")),
    "normal": lambda: torch.normal(0.0, torch.tensor([-1.0, 1.0, -2.0]).to("xla")),
    "normal, both": lambda: torch.normal(torch.zeros(3, device="xla"), torch.tensor([-1.0, 1.0, float("nan")]).to("xla")),
}


@pytest.mark.parametrize("name", NOT_ONES)
def test_where_there_is_no_such_distribution_the_sample_is_nan(name):
    assert NOT_ONES[name]().isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("replacement", [False, True])
def test_a_class_of_no_distribution_reads_nan(replacement):
    weights = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-1.0, 2.0, 0.0], [1.0, float("nan"), 1.0], [1.0, float("inf"), 1.0]])
    drawn = torch.multinomial(weights.to("xla"), 1, replacement)
    assert drawn[1].item() == 1
    read = torch.arange(3.0, device="xla")[drawn[:, 0]]
    assert read.isnan().tolist() == [True, False, True, True, True]
