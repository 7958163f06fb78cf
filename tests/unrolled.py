"""The loops in Python that the control flow stands for."""

import torch
from torch.utils._pytree import tree_leaves, tree_map


def scanned(fn, init, xs):
    """``scan`` as a loop."""
    carry, ys = init, []
    for place in range(tree_leaves(xs)[0].shape[0]):
        carry, y = fn(carry, tree_map(lambda x: None if x is None else x[place], xs))  # noqa: B023
        ys.append(y)
    return carry, tree_map(lambda *each: None if each[0] is None else torch.stack(each), *ys)


def total(*values):
    """One number of all tensors in some structures that gradients flow through."""
    return sum((leaf.double() ** 2).sum() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
