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

    def run_by_tests(self):
        if self.keys - self.reached:  # the test of the keys runs alone
            for op, dtype in self.parameters():
                names = Names()
                run(op, dtype, names, self.samples[dtype])
                self.reached |= names.seen
        return self.reached
