"""Calls of every lowered operation, for random programs.

PyTorch's operator database has samples that reach most of the table, each through some call of a user's: reached.json says which sample
reaches what. The rest is called with operands made for its schema, or by hand. ``python tests/fuzz/lowered.py`` writes reached.json anew.

Operands are the sample's own, so both sides begin with the same bits, and operations that jump (a comparison, a floor) may be among them;
integers, which are exact everywhere, are taken from the program's pool where one fits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import pathlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from operands import KEYWORDS, OPERANDS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from surestep.lower.table import lowerings

FILE = pathlib.Path(__file__).with_name("reached.json")
SAMPLES = 6  # of each entry and dtype
LARGEST = 2_000  # elements of all operands: programs stay fast
DTYPES = (torch.float64, torch.int64, torch.complex128, torch.bool)
LEFT_OUT = (
    "empty", "new_empty", "_efficientzerotensor",  # memory that nobody wrote, or that is not there
    "_linalg_svd", "_linalg_eigh", "sort.", "topk", "kthvalue", "median", "nanmedian", "mode",  # results that are not unique
    "_embedding_bag.", "_embedding_bag_forward_only", "_native_batch_norm_legit_no_training",  # results that only backward is to see
    "_standard_gamma_grad",  # approximated, each side in its own way
    "convolution_overrideable", "update::",  # which no CPU has
)  # fmt: skip

Call = tuple[Any, tuple, dict]


def names() -> list[str]:
    """All that is lowered and gives the same numbers twice."""
    return [name for name, entry in lowerings().items() if not entry.random and not entry.custom and not name.startswith(LEFT_OUT)]


class Captured(TorchDispatchMode):
    """Keeps the first call of each overload, with copies of its operands."""

    def __init__(self):
        super().__init__()
        self.calls: dict[str, Call] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, (args, kwargs or {}))
        self.calls.setdefault(str(func).removeprefix("aten."), (func, *given))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """The samples are the same each time, and the program's own random numbers as they were."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.default_generator.set_state(before)


@functools.cache
def database() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}-{op.variant_test_name}": op for op in op_db}


def sampled(entry: str, dtype: torch.dtype) -> Iterator[dict[str, Call]]:
    """For the first samples of an entry: what is called, forward and backward."""
    op = database()[entry]
    backward = dtype.is_floating_point and op.supports_autograd
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), SAMPLES):
        with Captured() as captured:
            result = op(sample.input, *sample.args, **sample.kwargs)
            roots = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            leaves = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            if roots and leaves:
                torch.autograd.grad(roots, leaves, [torch.ones_like(r) for r in roots], allow_unused=True)
        yield captured.calls


MADE: dict[str, Callable[[torch.dtype], Any]] = {
    "Tensor": lambda dtype: torch.arange(1, 7).reshape(2, 3).to(dtype), "number": lambda dtype: 2, "int": lambda dtype: 1,
    "float": lambda dtype: 0.5, "bool": lambda dtype: False, "List[int]": lambda dtype: [1, 1],
    "List[Tensor]": lambda dtype: [torch.ones(2, 3).to(dtype)] * 2,
}  # fmt: skip


def made(name: str) -> Call | None:
    """A call with operands by hand, or made for the schema if the CPU takes it."""
    packet, _, which = name.partition(".")
    func = getattr(getattr(torch.ops.aten, packet), which)
    if name in OPERANDS:
        return func, OPERANDS[name](), KEYWORDS.get(name, {})
    for dtype in (torch.int64, torch.float64):
        with contextlib.suppress(RuntimeError, IndexError, ValueError, TypeError, KeyError, NotImplementedError):
            args = tuple(MADE[str(a.type)](dtype) for a in func._schema.arguments if not a.kwarg_only and not a.has_default_value())
            func(*args)
            return func, args, {}
    return None


@functools.cache
def reached() -> dict[str, list | None]:
    return json.loads(FILE.read_text())


@functools.cache
def call(name: str) -> Call:
    """The overload and its operands, on the CPU."""
    where = reached()[name]
    with seeded():
        if where is None:
            found = made(name)
            assert found is not None, f"{name} can't be called: write reached.json anew"
            return found
        entry, dtype, index = where
        return next(itertools.islice(sampled(entry, getattr(torch, dtype)), index, None))[name]


def lowered(r: random.Random) -> Callable[[Any], None]:
    """One instruction of a random program."""
    name, choice = r.choice(list(reached())), r.randrange(64)

    def run(m: Any) -> None:
        func, args, kwargs = call(name)
        whole = [t for t in m.pool if t.dtype is torch.int64]

        def there(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                fitting = [t for t in whole if t.shape == value.shape and value.dtype is torch.int64]
                return fitting[choice % len(fitting)] if fitting and not is_index(func) else lying(value).to(m.device)
            return torch.device(m.device) if isinstance(value, torch.device) else value

        device = {"device": m.device} if is_factory(func) else {}
        m.add(func(*tree_map(there, args), **(tree_map(there, kwargs) | device)))

    run.what = name
    return run


def lying(value: torch.Tensor) -> torch.Tensor:
    """As it lies on both machines: a transposed CPU tensor arrives contiguous on the device, and some operations return their operand."""
    return value.contiguous()


def is_factory(func: Any) -> bool:
    """Whether it has to be told where."""
    arguments = func._schema.arguments
    return any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments)


def is_index(func: Any) -> bool:
    """Whether some integers must stay within bounds, or some numbers be of a certain kind."""
    return len([a for a in func._schema.arguments if "Tensor" in str(a.type)]) > 2 or "ind" in str(func._schema)


def write() -> None:
    """Which sample reaches what: of those that do, the one with the fewest elements."""
    wanted, found = set(names()), {}
    for entry, op in database().items():
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            with seeded(), contextlib.suppress(RuntimeError, NotImplementedError, AssertionError):
                for index, calls in enumerate(sampled(entry, dtype)):
                    for name in calls.keys() & wanted:
                        size = sum(t.numel() for t in tree_leaves(calls[name][1:]) if isinstance(t, torch.Tensor))
                        if 0 < size <= min(LARGEST, found.get(name, (LARGEST,))[0] - 1):
                            found[name] = size, [entry, str(dtype).removeprefix("torch."), index]
    table = {name: found[name][1] if name in found else None for name in sorted(wanted) if name in found or made(name)}
    FILE.write_text("{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(where)}" for name, where in table.items()) + "\n}\n")
    print(f"{len(table)} of {len(wanted)}; out of reach: {sorted(wanted - table.keys())}")


if __name__ == "__main__":
    write()
