"""Random tensors. The numbers are JAX's, the distributions PyTorch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.numeric import cast, is_complex, is_floating
from surestep.lower.shared import opmath
from surestep.lower.spec import lowering


def _unit(key, shape, dtype):
    """Uniform in [0, 1)."""
    return jax.random.uniform(key, shape, dtype)


def _open_unit(key, shape, dtype):
    """Uniform in (0, 1): a logarithm of it is finite and negative."""
    return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)


def _floats(dtype):
    """The dtype to draw floats in for a result of ``dtype``: its own where it has one of 32 or 64 bits."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _threefry(key):
    """A key for those of JAX's samplers that work with no other generator."""
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), np.uint32), impl="threefry2x32")


def _if(valid, drawn):
    """What was drawn, where there is such a distribution; else ``nan``, or the lowest integer. PyTorch raises there on the CPU, where it
    reads the operands.
    """
    if is_floating(drawn.dtype):
        return jnp.where(valid, drawn, jnp.nan)
    return jnp.where(valid, drawn, np.iinfo(drawn.dtype).min) if np.issubdtype(drawn.dtype, np.signedinteger) else drawn


def rand(out, *args, key):
    if is_complex(out.dtype):
        real, imaginary = jax.random.split(key)
        dtype = np.finfo(out.dtype).dtype
        return lax.complex(_unit(real, out.shape, dtype), _unit(imaginary, out.shape, dtype))
    return _unit(key, out.shape, out.dtype)


def uniform(out, x, low=0.0, high=1.0, *, key):
    dtype = opmath(out.dtype)
    low, high = cast(low, dtype), cast(high, dtype)
    drawn = cast(low + cast(_unit(key, out.shape, out.dtype), dtype) * (high - low), out.dtype)
    # the sum may round up to the end, which is not in the range
    last = jnp.maximum(jnp.nextafter(cast(high, out.dtype), cast(low, out.dtype)), cast(low, out.dtype))
    return jnp.where(drawn >= cast(high, out.dtype), last, drawn)


def _normal(key, shape, dtype):
    return jax.random.normal(key, shape, dtype if is_complex(dtype) else _floats(dtype))


def randn(out, *args, key):
    return cast(_normal(key, out.shape, out.dtype), out.dtype)


def _scaled_normal(out, mean, std, key):
    drawn = _normal(key, out.shape, out.dtype)
    std = cast(std, drawn.dtype)
    scaled = cast(drawn * std + cast(mean, drawn.dtype), out.dtype)
    return scaled if is_complex(out.dtype) else _if(std >= 0, scaled)


def normal_functional(out, x, mean=0.0, std=1.0, *, key):
    return _scaled_normal(out, mean, std, key)


def normal(out, mean, std=1.0, size=None, *, key):
    return _scaled_normal(out, mean, std, key)


def log_normal(out, x, mean=1.0, std=2.0, *, key):
    drawn = _normal(key, out.shape, out.dtype)
    return cast(jnp.exp(drawn * cast(std, drawn.dtype) + cast(mean, drawn.dtype)), out.dtype)


def exponential(out, x, rate=1.0, *, key):
    dtype = _floats(out.dtype)
    return cast(-jnp.log(_open_unit(key, out.shape, dtype)) / cast(rate, dtype), out.dtype)


def geometric(out, x, p, *, key):
    dtype = _floats(out.dtype)
    failures = jnp.log(_open_unit(key, out.shape, dtype)) / jnp.log1p(-cast(p, dtype))
    return cast(jnp.maximum(jnp.ceil(failures), 1), out.dtype)


def cauchy(out, x, median=0.0, sigma=1.0, *, key):
    dtype = _floats(out.dtype)
    angle = cast(np.pi, dtype) * (_open_unit(key, out.shape, dtype) - 0.5)
    return cast(cast(median, dtype) + cast(sigma, dtype) * jnp.tan(angle), out.dtype)


def _bernoulli(key, shape, p):
    """True with probability ``p``: never for 0, always for 1."""
    dtype = _floats(getattr(p, "dtype", None))
    return _unit(key, shape, dtype) < cast(p, dtype)


def bernoulli(out, probabilities, *, key):
    return bernoulli_tensor(out, None, probabilities, key=key)


def bernoulli_number(out, x, p=0.5, *, key):
    # the same bits are drawn whether the number is a constant or, having changed, an input of the program
    return cast(_bernoulli(key, out.shape, cast(p, np.dtype(np.float32))), out.dtype)


def bernoulli_tensor(out, x, p, *, key):
    return _if((p >= 0) & (p <= 1), cast(_bernoulli(key, out.shape, p), out.dtype))


def native_dropout(outs, x, p, train, *, key):
    if train is False:
        return x, jnp.ones(outs[1].shape, np.bool_)
    dtype = opmath(outs[0].dtype)
    kept = 1 - cast(p, np.dtype(np.float32))
    mask = _bernoulli(key, outs[1].shape, kept)
    scale = cast(jnp.where(kept == 0, kept, 1 / jnp.where(kept == 0, 1, kept)), dtype)
    return cast(cast(x, dtype) * jnp.where(mask, scale, cast(0, dtype)), outs[0].dtype), mask


def native_dropout_backward(out, grad, mask, scale):
    dtype = opmath(out.dtype)
    return cast(cast(grad, dtype) * jnp.where(mask, cast(scale, dtype), cast(0, dtype)), out.dtype)


def fused_dropout(outs, x, p, *, key):
    """Of the two results, the mask is of bytes; ``p`` is the probability that an element is kept."""
    result, mask = native_dropout(outs, x, 1 - p, True, key=key)
    return result, cast(mask, outs[1].dtype)


def rrelu_with_noise(outs, x, noise, lower=0.125, upper=1 / 3, training=False, *, key):
    dtype = opmath(outs[0].dtype)
    x, lower, upper = cast(x, dtype), cast(lower, dtype), cast(upper, dtype)
    if not training:
        return cast(jnp.where(x > 0, x, x * ((lower + upper) / 2)), outs[0].dtype), noise
    slope = jnp.where(x <= 0, lower + (upper - lower) * _unit(key, x.shape, _floats(dtype)), cast(1, dtype))
    return cast(x * slope, outs[0].dtype), cast(slope, outs[1].dtype)


def _integers(key, out, low, high):
    """Integers of the closed range, by wrapping 64-bit arithmetic: the range may be that of int64 itself."""
    bits = jax.random.bits(key, out.shape, np.uint64)
    count = high - low + 1
    if isinstance(count, int) and count == 2**64:
        offset = bits
    else:
        offset = bits % (np.uint64(count) if isinstance(count, int) else count.astype(np.uint64))
    drawn = offset + np.uint64(low % 2**64)
    if not jnp.issubdtype(out.dtype, jnp.unsignedinteger):
        drawn = drawn.astype(np.int64)
    return cast(drawn, out.dtype)


def _largest(dtype):
    """The largest number that ``random_`` draws: for floats the last up to which they hold every integer."""
    if dtype == np.bool_:
        return 1
    return 2 ** (jnp.finfo(dtype).nmant + 1) if is_floating(dtype) else jnp.iinfo(dtype).max


def random(out, x, *, key):
    return _integers(key, out, 0, int(_largest(out.dtype)))


def random_to(out, x, to, *, key):
    return _integers(key, out, 0, to - 1)


def random_from(out, x, from_, to, *, key):
    return _integers(key, out, from_, int(_largest(out.dtype)) if to is None else to - 1)


def randint(out, high, size, *, key):
    return _integers(key, out, 0, high - 1)


def randint_low(out, low, high, size, *, key):
    return _integers(key, out, low, high - 1)


def randint_like(out, x, high, *, key):
    return _integers(key, out, 0, high - 1)


def randint_like_low(out, x, low, high, *, key):
    return _integers(key, out, low, high - 1)


def randperm(out, n, *, key):
    return jax.random.permutation(key, n).astype(out.dtype)


def multinomial(out, weights, num_samples, replacement=False, *, key):
    dtype = _floats(weights.dtype)
    weights = cast(weights, dtype)
    valid = jnp.all((weights >= 0) & (weights < jnp.inf), axis=-1, keepdims=True) & jnp.any(weights > 0, axis=-1, keepdims=True)
    return _if(valid, _chosen(out, weights, num_samples, replacement, key))


def _chosen(out, weights, num_samples, replacement, key):
    dtype = weights.dtype
    if not replacement:
        # the first to ring of clocks that ring at the rates of the weights; one of weight 0 rings never
        rings = -jnp.log(_open_unit(key, weights.shape, dtype))
        return lax.top_k(weights / rings, num_samples)[1].astype(np.int64)
    below = jnp.cumsum(weights, axis=-1)
    whole = below[..., -1:]
    drawn = _unit(key, out.shape, dtype) * whole
    chosen = jnp.sum(below[..., None, :] <= drawn[..., None], axis=-1)
    # the product may round up to the whole: then it is the last class that has a weight
    return jnp.minimum(chosen, jnp.sum(below < whole, axis=-1, keepdims=True)).astype(np.int64)


def poisson(out, rate, *, key):
    rate = cast(rate, _floats(out.dtype))
    return _if(rate >= 0, cast(jax.random.poisson(_threefry(key), rate, rate.shape, np.int64), out.dtype))


def standard_gamma(out, alpha, *, key):
    alpha = cast(alpha, _floats(out.dtype))
    # never 0, which has no logarithm
    return jnp.maximum(cast(jax.random.gamma(key, alpha, alpha.shape, alpha.dtype), out.dtype), jnp.finfo(out.dtype).tiny)


def standard_gamma_grad(out, alpha, sample):
    dtype = _floats(out.dtype)
    return cast(lax.random_gamma_grad(cast(alpha, dtype), cast(sample, dtype)), out.dtype)


def sample_dirichlet(out, alpha, *, key):
    alpha = cast(alpha, _floats(out.dtype))
    logs = jax.random.loggamma(key, alpha, alpha.shape, alpha.dtype)
    return cast(jax.nn.softmax(logs, axis=-1), out.dtype)


def binomial(out, count, p, *, key):
    dtype = _floats(out.dtype)
    return cast(jax.random.binomial(_threefry(key), cast(count, dtype), cast(p, dtype), out.shape, dtype), out.dtype)


_FUNCTIONS = {
    "rand.default": rand, "rand.generator": rand, "rand_like.default": rand, "rand_like.generator": rand,
    "randn.default": randn, "randn.generator": randn, "randn_like.default": randn, "randn_like.generator": randn,
    "randint.default": randint, "randint.generator": randint, "randint.low": randint_low, "randint.low_generator": randint_low,
    "randint_like.default": randint_like, "randint_like.generator": randint_like,
    "randint_like.Tensor": randint_like, "randint_like.Tensor_generator": randint_like,
    "randint_like.low_dtype": randint_like_low, "randint_like.low_generator_dtype": randint_like_low,
    "randperm.default": randperm, "randperm.generator": randperm,
    "uniform.default": uniform, "normal_functional.default": normal_functional,
    "normal.Tensor_float": normal, "normal.float_Tensor": normal, "normal.Tensor_Tensor": normal, "normal.float_float": normal,
    "log_normal.default": log_normal, "exponential.default": exponential, "geometric.default": geometric, "cauchy.default": cauchy,
    "bernoulli.default": bernoulli, "bernoulli.p": bernoulli_number, "bernoulli.Tensor": bernoulli_tensor,
    "native_dropout.default": native_dropout, "_fused_dropout.default": fused_dropout,
    "rrelu_with_noise_functional.default": rrelu_with_noise,
    "random.default": random, "random.to": random_to, "random.from": random_from,
    "multinomial.default": multinomial, "poisson.default": poisson, "binomial.default": binomial,
    "_standard_gamma.default": standard_gamma, "_sample_dirichlet.default": sample_dirichlet,
}  # fmt: skip
TABLE = {
    **{name: lowering(function, random=True) for name, function in _FUNCTIONS.items()},
    "native_dropout_backward.default": lowering(native_dropout_backward),
    "_standard_gamma_grad.default": lowering(standard_gamma_grad),
}
