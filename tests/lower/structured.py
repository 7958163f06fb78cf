"""What the tests of the structured families share: PyTorch's samples with every array an unknown, and which keys they reach."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import pytest
import torch
from checks import liftable, to_jax, to_torch
from samples import SampleChecked, entries, run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from surestep.execute import dtypes
from surestep.lower.spec import Out

TOLERANCES = {
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
}
# how many of an entry's samples are run for each dtype
LIMITS = {torch.float32: 3, torch.bfloat16: 1, torch.float64: 1, torch.int64: 1, torch.bool: 1, torch.complex64: 1}
# what they hold is arbitrary, or has no memory to be compared
ARBITRARY = ("empty", "new_empty", "_efficientzerotensor")


class Traced(SampleChecked):
    """Lowers as programs do: all arrays are tracers, and the scalars that may change from step to step too."""

    def lower(self, func, entry, out, args, kwargs):
        names = {a.name: a for a in func._schema.arguments}
        args = [self.lifted(a, entry, value) for a, value in zip(func._schema.arguments, args, strict=False)]
        kwargs = {name: self.lifted(names[name], entry, value) for name, value in kwargs.items()}
        leaves, structure = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        if func is torch.ops.aten.index.Tensor and any(leaves[i].dtype in (jnp.bool_, jnp.uint8) for i in places[1:]):
            return entry.function(out, *args, **kwargs)  # the size depends on the mask: on the device it is read by the host

        def call(arrays):
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            given, named = tree_unflatten(filled, structure)
            return entry.function(out, *given, **named)

        return jax.jit(call)([leaves[i] for i in places])

    @staticmethod
    def lifted(argument, entry, value):
        return jnp.asarray(value) if liftable(argument, entry, value) else value


class Names(TorchDispatchMode):
    """Only notes what is called."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


class Family:
    """The keys of some families' tables, the database's entries that reach them, and calls by hand for the rest."""

    def __init__(self, *families, ops=(), cases=None, unreached=()):
        self.table = {}
        for family in families:
            self.table |= importlib.import_module(f"surestep.lower.{family}").TABLE
        self.ops, self.cases, self.unreached = entries(*ops) if ops else [], cases or {}, set(unreached)
        self.keys = {key for key in self.table if not key.startswith(ARBITRARY)}

    def parameters(self):
        return [(op, dtype) for op in self.ops for dtype in LIMITS if dtype in op.dtypes]

    def name(self, parameter):
        if isinstance(parameter, torch.dtype):
            return str(parameter).removeprefix("torch.")
        return parameter.name + (f"-{parameter.variant_test_name}" if parameter.variant_test_name else "")

    def check_samples(self, op, dtype):
        """One sample as programs are lowered, the rest operation by operation: those are compiled once for all tests."""
        tolerances = TOLERANCES.get(dtype, {})
        if dtype is torch.float32:
            torch.manual_seed(0)
            run(op, dtype, Traced(only=self.keys, **tolerances), 1)
        torch.manual_seed(0)
        run(op, dtype, SampleChecked(only=self.keys, **tolerances), LIMITS[dtype])

    def check_case(self, name):
        torch.manual_seed(0)
        checked = Traced(only=self.keys, **TOLERANCES[torch.float32])
        with checked:
            self.cases[name]()
        assert self.named(name) <= checked.seen

    def named(self, case):
        """The keys in a case's name, which it reaches."""
        return {word for word in case.split() if word in self.keys}

    def lowered(self, key, expected, *arguments, **named):
        """A lowering's results for CPU tensors, as CPU tensors: where PyTorch has no kernel to be repeated, or several right results."""
        expected = [expected] if isinstance(expected, torch.Tensor) else expected
        outs = tuple(Out(tuple(e.shape), dtypes.to_jax(e.dtype)) for e in expected)
        with jax.enable_x64(True):
            results = self.table[key].function(outs if len(outs) > 1 else outs[0], *(to_jax(a) for a in arguments), **named)
        results = results if len(outs) > 1 else [results]
        for result, out in zip(results, outs, strict=True):
            assert (result.shape, result.dtype) == out
        return [to_torch(result) for result in results]

    def check_lowered(self, key, expected, *arguments, **named):
        results = self.lowered(key, expected, *arguments, **named)
        torch.testing.assert_close(results, [expected] if isinstance(expected, torch.Tensor) else list(expected), rtol=1e-5, atol=1e-5)

    def check_keys(self):
        """Every key is an overload of this PyTorch that changes nothing in place, and some test runs it."""
        for key in self.table:
            operation, overload = key.split(".")
            function = getattr(getattr(torch.ops.aten, operation), overload)
            assert not function._schema.is_mutable and not function.is_view, key
        missing = self.keys - self.run_by_tests()
        assert missing == self.unreached, f"not run by any test: {missing - self.unreached}; run after all: {self.unreached - missing}"

    def run_by_tests(self):
        """The keys in the cases' names, and those that the samples reach."""
        reached = set().union(*(self.named(name) for name in self.cases))
        for op in self.ops:
            names = Names()
            for dtype in (torch.float32, torch.int64):
                run(op, dtype, names, LIMITS[dtype])
            reached |= names.seen
        return reached

    def tests(self):
        """What a page of tests has of a family: its samples, its cases, and that no key is left out."""

        @pytest.mark.parametrize(("op", "dtype"), self.parameters(), ids=self.name)
        def test_samples(op, dtype):
            self.check_samples(op, dtype)

        @pytest.mark.parametrize("case", self.cases)
        def test_case(case):
            self.check_case(case)

        def test_keys():
            self.check_keys()

        return test_samples, test_case, test_keys
