"""Loops and branches over functions that were recorded as traces of their own, through JAX's control flow: traced and compiled once,
however many rounds they run.

Each function here makes one over JAX arrays, of the arguments ``(floats, ints, seeds, captured, ...)``: numbers, without the seeds; the
seeds, as vectors (seed, offset); and what is read from outside.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from surestep.lower.interpret import evaluated

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads the rounds of a loop over all seeds


def _vector(numbers, dtype):
    return jnp.stack(numbers) if numbers else jnp.zeros((0,), dtype)


def _with_seeds(nested, ints, seeds):
    """All ints of the trace: those that were given, and the seeds in their places."""
    found = list(ints)
    for place, seed in zip(nested.seeds(), seeds, strict=True):
        found[place:place] = [seed[0], seed[1]]
    return _vector(found, np.int64)


def _counted(nested, seeds, distances, count):
    """The seeds of one round of a known number: each goes on where the one before has ended, as in a loop in Python."""
    return [
        seed + jnp.stack([jnp.int64(0), distance + count * draws])
        for seed, distance, draws in zip(seeds, distances, nested.draws, strict=True)
    ]


def _spread(seeds, distances, count):
    """The seeds of a round, of which there may be any number: each has another seed, so that the offset after them hangs on none."""
    return [seed + jnp.stack([count * jnp.int64(_ODD), jnp.int64(distance)]) for seed, distance in zip(seeds, distances, strict=True)]


def _forward(nested, given, floats, ints, seeds):
    """The values of the function, for what it is given and captures."""
    values = [None] * nested.values
    return evaluated(nested, range(nested.split), given, values, _vector(floats, np.float64), _with_seeds(nested, ints, seeds))


def _stacked(parts, shardings):
    """One array a part; what is given as a list of arrays, one a round, is stacked, and lies over the devices as they do."""
    return [_stack(part, sharding) if isinstance(part, list) else part for part, sharding in zip(parts, shardings, strict=True)]


def _stack(arrays, sharding):
    """Two operations for any number of arrays, where ``jnp.stack`` takes one more for each: a model has hundreds. Split ones are not put
    one after the other: the devices would have to exchange them.
    """
    shape = arrays[0].shape
    if not shape or sharding is not None:
        return _lying(jnp.stack(arrays), sharding)
    return lax.concatenate(arrays, 0).reshape(len(arrays), *shape)


def _lying(stack, sharding):
    """A stack whose arrays lie over the devices as the sharding says, if it says anything."""
    if sharding is None:
        return stack
    return lax.with_sharding_constraint(stack, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)))


def _unstacked(stack, places):
    """The arrays of a stack. The places come from outside of the program: XLA doesn't know them, so that one kernel serves them all, where
    slices at known places are compiled one by one.
    """
    zeros = [jnp.uint32(0)] * (stack.ndim - 1)
    return [lax.dynamic_slice(stack, [place, *zeros], (1, *stack.shape[1:])).reshape(stack.shape[1:]) for place in places]


def scan(nested, carries, length, distances, kept, shardings):
    """``(..., init, xs)`` to the last carries, the results of all rounds, and what is kept for the derivative. ``shardings`` are how the
    arrays of each list among the ``xs`` lie over the devices, or None.
    """

    def function(floats, ints, seeds, captured, init, xs):
        def body(carry, given):
            count, parts = given
            here = _counted(nested, seeds, distances, count)
            values = _forward(nested, [*carry, *parts, *captured], floats, ints, here)
            outputs = [values[index] for index in nested.outputs]
            return outputs[:carries], (outputs[carries:], [values[index] for index in kept.values])

        carry, (ys, saved) = lax.scan(body, list(init), (jnp.arange(length), _stacked(xs, shardings)), length=length)
        return [*carry, *ys, *saved]

    return function


def call(nested, distances, kept):
    """``(..., inputs)`` to the results, and what is kept for the derivative."""

    def function(floats, ints, seeds, captured, inputs):
        here = _counted(nested, seeds, distances, 0)
        values = _forward(nested, [*inputs, *captured], floats, ints, here)
        return [values[index] for index in (*nested.outputs, *kept.values)]

    return function


class _Derivative:
    """The function's derivative in one round; what is the same in all of them is computed once, here."""

    def __init__(self, nested, kept, captured, floats, ints):
        self.nested, self.kept = nested, kept
        self.floats = _vector(floats, np.float64)
        self.values = [None] * nested.values
        self.leaves = nested.leaf_values()
        self.captured = captured[len(kept.captured) :]  # by the derivative only
        for place, value in zip(kept.captured, captured, strict=False):
            self.values[self.leaves[nested.inputs + place]] = value
        evaluated(nested, kept.always, (), self.values, self.floats, ints)

    def gradients(self, inputs, saved, cotangents, ints):
        """The gradients of what has one, for the inputs by their positions."""
        nested, kept = self.nested, self.kept
        values = list(self.values)
        for index, value in (*((self.leaves[place], value) for place, value in inputs.items()), *zip(kept.values, saved, strict=True)):
            values[index] = value
        leaves = [*[None] * (nested.inputs + nested.captured), *cotangents, *self.captured]
        records = (*kept.again, *range(nested.split, len(nested.records)))
        evaluated(nested, records, leaves, values, self.floats, ints)
        return [None if index is None else values[index] for index in nested.gradients]


def call_backward(nested, distances, kept, like):
    """``(..., inputs, saved, cotangents)`` to the gradients, of which ``like`` are the shapes and dtypes."""

    def function(floats, ints, seeds, captured, inputs, saved, cotangents):
        ints = _with_seeds(nested, ints, _counted(nested, seeds, distances, 0))
        derivative = _Derivative(nested, kept, captured, floats, ints)
        found = derivative.gradients(dict(zip(kept.inputs, inputs, strict=True)), saved, cotangents, ints)
        return [_or_zeros(new, figures) for new, figures in zip(found, like, strict=True)]

    return function


def _or_zeros(value, figures):
    return jnp.zeros(*figures) if value is None else value


def scan_backward(nested, carries, parts, wanted, given, length, distances, kept, like, shardings):
    """``(..., xs, saved, cotangents, places)`` to the gradients: of the carries and parts that are ``wanted``, and of what is captured.

    ``parts`` says of each part how many arrays it is given as, 0 for one that is stacked; so are the gradients, for which ``places``
    are the numbers of the rounds. ``wanted`` are the inputs with a gradient, ``given`` the results with a cotangent, by position, the
    carries first; ``like`` are the shapes and dtypes of one round's gradients; ``shardings`` are those of the parts.
    """
    of_carries = [place for place in wanted if place < carries]
    inputs = len(wanted)

    def function(floats, ints, seeds, captured, xs, saved, cotangents, places):
        derivative = _Derivative(nested, kept, captured, floats, _with_seeds(nested, ints, seeds))
        last = dict(zip(given, cotangents, strict=True))
        # a carry that gets a gradient and gives none on: of the only round
        only = {place: cotangent for place, cotangent in last.items() if place < carries and place not in of_carries}

        def body(state, given_here):
            count, here_parts, known, arriving = given_here
            arriving = only | arriving | dict(zip(of_carries, state[: len(of_carries)], strict=True))
            here = _with_seeds(nested, ints, _counted(nested, seeds, distances, count))
            found = derivative.gradients(dict(zip(kept.inputs, here_parts, strict=True)), known, [arriving[place] for place in given], here)
            found = [_or_zeros(new, figures) for new, figures in zip(found, like, strict=True)]
            sums = [total + new for total, new in zip(state[len(of_carries) :], found[inputs:], strict=True)]
            return [*found[: len(of_carries)], *sums], found[len(of_carries) : inputs]

        state = [last[place] if place in last else jnp.zeros(*figures) for place, figures in zip(of_carries, like, strict=False)]
        state += [jnp.zeros(*figures) for figures in like[inputs:]]
        of_ys = {place: cotangent for place, cotangent in last.items() if place >= carries}
        lie = [shardings[place - carries] for place in kept.inputs]
        rounds = (jnp.arange(length), _stacked(xs, lie), saved, of_ys)
        state, of_parts = lax.scan(body, state, rounds, length=length, reverse=True)
        found = state[: len(of_carries)]
        for place, stack in zip((place for place in wanted if place >= carries), of_parts, strict=True):
            found += _unstacked(_lying(stack, shardings[place - carries]), places) if parts[place - carries] else [stack]
        return [*found, *state[len(of_carries) :]]

    return function


def while_loop(condition, body, distances):
    """``(of the condition, of the body, init)``, where the first two are lists (floats, ints, seeds, captured), to the last carries."""

    def function(of_condition, of_body, init):
        def results(nested, operands, distances, state):
            floats, ints, seeds, captured = operands
            count, *carry = state
            values = _forward(nested, [*carry, *captured], floats, ints, _spread(seeds, distances, count))
            return [values[index] for index in nested.outputs]

        def holds(state):
            return results(condition, of_condition, distances[0], state)[0]

        def step(state):
            return [state[0] + 1, *results(body, of_body, distances[1], state)]

        return lax.while_loop(holds, step, [jnp.int64(0), *init])[1:]

    return function


def cond(true, false, distances):
    """``(predicate, of the one, of the other, operands)`` to the results of one of them."""

    def function(predicate, of_true, of_false, operands):
        def branch(nested, distances, floats, ints, seeds, captured):
            here = _counted(nested, seeds, distances, 0)
            values = _forward(nested, [*operands, *captured], floats, ints, here)
            return [values[index] for index in nested.outputs]

        return lax.cond(predicate, lambda: branch(true, distances[0], *of_true), lambda: branch(false, distances[1], *of_false))

    return function


def cond_backward(nested, distances, kept, takes, gives, like):
    """``(predicate, of the one, of the other, operands, cotangents)`` to the gradients, of which ``like`` are the shapes and dtypes.

    Of two functions: which of the cotangents each ``takes``, and which of the gradients it ``gives``; the others are zero.
    """

    def function(predicate, of_true, of_false, operands, cotangents):
        def branch(place, floats, ints, seeds, captured):
            ints = _with_seeds(nested[place], ints, _counted(nested[place], seeds, distances[place], 0))
            derivative = _Derivative(nested[place], kept[place], captured, floats, ints)
            inputs = {number: operands[number] for number in kept[place].inputs}
            found = derivative.gradients(inputs, (), [cotangents[number] for number in takes[place]], ints)
            found = dict(zip(gives[place], found, strict=True))
            return [_or_zeros(found.get(number), figures) for number, figures in enumerate(like)]

        return lax.cond(predicate, lambda: branch(0, *of_true), lambda: branch(1, *of_false))

    return function
