"""The `Family` of the elementwise and reducing operations: PyTorch's own tolerances, and Python numbers as well as lifted ones."""

from __future__ import annotations

import torch
from samples import SampleChecked, run
from structured import Family, Names, Traced

# How many samples of an entry are run. Traced: arrays and scalars are inputs of a program; plain: the scalars are Python numbers.
TRACED = {torch.float32: 1}
PLAIN = {torch.float32: 2, torch.bfloat16: 1, torch.int64: 1, torch.complex64: 1}


class Elementwise(Family):
    def __init__(self, *families, dtypes=(), **options):
        super().__init__(*families, **options)
        self.samples = PLAIN | dict.fromkeys(dtypes, 1)
        self.reached = {name.split(" ")[0] for name in self.cases}

    def parameters(self):
        return [(op, dtype) for op in self.ops for dtype in self.samples if dtype in op.dtypes]

    def check_samples(self, op, dtype):
        torch.manual_seed(0)
        for kind, limits in ((SampleChecked, self.samples), (Traced, TRACED)):
            if dtype in limits:
                checked = kind(only=self.keys)
                run(op, dtype, checked, limits[dtype])
                self.reached |= checked.seen

    def check_case(self, name):
        for lift in (False, True):
            torch.manual_seed(0)
            with SampleChecked(only=self.keys, lift=lift) as checked:
                self.cases[name]()
            assert name.split(" ")[0] in checked.seen

    def check_keys(self):
        """Every key is an overload of this PyTorch that changes nothing in place, and some test of this file runs it."""
        for key in self.table:
            operation, overload = key.split(".")
            function = getattr(getattr(torch.ops.aten, operation), overload)
            assert not function._schema.is_mutable and not function.is_view, key
        if self.keys - self.reached:  # this test runs alone
            for op, dtype in self.parameters():
                names = Names()
                run(op, dtype, names, self.samples[dtype])
                self.reached |= names.seen
        missing = self.keys - self.reached
        assert missing == self.unreached, f"not run by any test: {missing - self.unreached}; run after all: {self.unreached - missing}"
