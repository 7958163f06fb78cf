"""The CTC loss: all alignments of a sequence of labels, with blanks between them, to a longer sequence, in logarithms.

Targets are padded to one row a sequence; what is beyond a target's length is never read as a label. Both operations say themselves what
shapes they give: the logarithms kept for backward are for the padded length.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from surestep.lower.spec import Lowering

_NEVER = -np.inf


def _labels(targets, target_lengths, blank):
    """Labels with a blank before, between and behind them: (batch, 2 * length + 1)."""
    size = targets.shape[1]
    known = jnp.where(jnp.arange(size) < target_lengths[:, None], targets, blank)
    blanks = jnp.full((targets.shape[0], size + 1), blank, known.dtype)
    return jnp.insert(blanks, jnp.arange(1, size + 1), known, axis=1)


def _shifted(x, by):
    """``x[:, s - by]`` where there is one, else the logarithm of 0."""
    empty = jnp.full((x.shape[0], min(abs(by), x.shape[1])), _NEVER, x.dtype)
    return jnp.concatenate([empty, x[:, :-by]], 1) if by > 0 else jnp.concatenate([x[:, -by:], empty], 1)


def _added(*terms):
    """The logarithm of the sum of exponentials, also where all of them are 0."""
    largest = jnp.maximum(terms[0], terms[1]) if len(terms) == 2 else jnp.maximum(jnp.maximum(terms[0], terms[1]), terms[2])
    base = jnp.where(largest == _NEVER, 0, largest)
    return jnp.log(sum(jnp.exp(term - base) for term in terms)) + base


def _skipping(labels, blank):
    """Where the blank before a label may be left out: the label before that is another one."""
    before = jnp.concatenate([jnp.full((labels.shape[0], min(2, labels.shape[1])), blank, labels.dtype), labels[:, :-2]], 1)
    return (labels != blank) & (labels != before)


def _emitted(log_probs, labels):
    """The logarithm of the probability of each label at each time: (time, batch, label)."""
    return jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape)), axis=2)


def ctc_loss(out, log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    labels = _labels(targets, target_lengths, blank)
    emitted, skips = _emitted(log_probs, labels), _skipping(labels, blank)
    place = jnp.arange(labels.shape[1])
    first = jnp.where((place < 2) & (place <= 2 * target_lengths[:, None]), emitted[0], _NEVER)

    def step(alpha, now):
        alpha = _added(alpha, _shifted(alpha, 1), jnp.where(skips, _shifted(alpha, 2), _NEVER)) + now
        return alpha, alpha

    alphas = jnp.concatenate([first[None], lax.scan(step, first, emitted[1:])[1]])
    last = jnp.maximum(input_lengths - 1, 0)
    ends = alphas[last, jnp.arange(labels.shape[0])]
    ends = jnp.where((place == 2 * target_lengths[:, None]) | (place == 2 * target_lengths[:, None] - 1), ends, _NEVER)
    largest = jnp.max(ends, axis=1)
    base = jnp.where(largest == _NEVER, 0, largest)
    loss = -(jnp.log(jnp.sum(jnp.exp(ends - base[:, None]), axis=1)) + base)
    nothing = jnp.where(target_lengths == 0, jnp.zeros((), loss.dtype), np.inf)
    return jnp.where(input_lengths == 0, nothing, loss), jnp.swapaxes(alphas, 0, 1)


def ctc_loss_backward(out, grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, zero_infinity=False):
    labels = _labels(targets, target_lengths, blank)
    emitted, skips = _emitted(log_probs, labels), _skipping(labels, blank)
    skipped = jnp.concatenate([skips[:, 2:], jnp.zeros((labels.shape[0], min(2, labels.shape[1])), np.bool_)], 1)
    place, times = jnp.arange(labels.shape[1]), jnp.arange(log_probs.shape[0])
    ends = (place == 2 * target_lengths[:, None]) | (place == 2 * target_lengths[:, None] - 1)

    def step(beta, at):
        time, now = at
        on = _added(beta, _shifted(beta, -1), jnp.where(skipped, _shifted(beta, -2), _NEVER)) + now
        beta = jnp.where((time == input_lengths - 1)[:, None], jnp.where(ends, now, _NEVER), on)
        return beta, beta

    nothing = jnp.full_like(emitted[0], _NEVER)
    both = lax.scan(step, nothing, (times, emitted), reverse=True)[1] + jnp.swapaxes(log_alpha, 0, 1)
    # by class: all places with the same label
    largest = jnp.max(both, axis=2, keepdims=True)
    base = jnp.where(largest == _NEVER, 0, largest)
    rows = jnp.arange(labels.shape[0])[:, None]
    summed = jnp.zeros(log_probs.shape, log_probs.dtype).at[times[:, None, None], rows, labels].add(jnp.exp(both - base))
    found = jnp.log(summed) + base
    share = (jnp.exp(log_probs) - jnp.exp(found + loss[:, None] - log_probs)) * grad[:, None]
    used = times[:, None] < input_lengths
    if zero_infinity:
        used = used & (loss != np.inf)
    return jnp.where(used[:, :, None], share, jnp.zeros((), share.dtype))


TABLE = {
    "_ctc_loss.Tensor": Lowering(ctc_loss, custom=True),
    "_ctc_loss_backward.Tensor": Lowering(ctc_loss_backward, custom=True),
}
