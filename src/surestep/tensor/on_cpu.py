"""The CPU's own word on a call: its error, in PyTorch's words, or its result's figures. It is run on stand-ins."""

from __future__ import annotations

from typing import Any

import torch

from surestep.tensor.stand_ins import Stand, numel

LIMIT = 1 << 22  # elements: larger operands are not made a second time for the sake of a message


def ask_cpu(func: Any, args: tuple, kwargs: dict, kernels_too: bool = False) -> Any:
    """Raises what the CPU raises; returns its result, or None where it can't be had.

    That the CPU has no kernel for the operation is only an error with ``kernels_too``: it may be served here.
    """
    if numel(args, kwargs) > LIMIT:
        return None
    if torch.Tag.nondeterministic_seeded in func.tags:
        with torch.random.fork_rng(()):  # the user's CPU generator must not move
            return _asked(func, args, kwargs, kernels_too)
    return _asked(func, args, kwargs, kernels_too)


def _asked(func: Any, args: tuple, kwargs: dict, kernels_too: bool) -> Any:
    try:
        return Stand("cpu").run(func, args, kwargs)
    except torch.linalg.LinAlgError:
        return None  # a singular matrix is the stand-ins' fault
    except NotImplementedError as theirs:
        if kernels_too:
            raise theirs.with_traceback(None) from None
        return None
    except Exception as theirs:
        if str(theirs) in _OF_VALUES:
            return None
        try:  # zeros are right for indices, and wrong for divisors and pivots: what passes with either is no mistake
            return Stand("cpu", integers=torch.ones).run(func, args, kwargs)
        except Exception:  # the first error is the one to be told
            raise theirs.with_traceback(None) from None


# What the CPU says of operands' values, which the stand-ins haven't: `repeat_interleave` with an `output_size`.
_OF_VALUES = {"allocated size does not match required size"}
