"""Replacing the tensors in nestings of Python objects."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import torch

from surestep.loop.nested import replaced

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    name: str


def negated(value):
    return replaced(value, lambda tensor: -tensor)


def test_containers_keep_their_types():
    one = torch.ones(1)
    found = negated({"list": [one, 2], "pair": Pair(one, "x"), "tuple": (one,), "ordered": OrderedDict(a=one), "user": UserDict(a=one)})
    assert found["list"][0].item() == -1 and found["list"][1] == 2
    assert found["pair"] == Pair(-one, "x")
    assert found["tuple"] == (-one,)
    assert type(found["ordered"]) is OrderedDict and found["ordered"]["a"].item() == -1
    assert type(found["user"]) is UserDict and found["user"]["a"].item() == -1


def test_what_a_mapping_knows_besides_is_kept():
    lists = defaultdict(list, a=torch.ones(1))
    found = negated(lists)
    assert found.default_factory is list and found["a"].item() == -1 and lists["a"].item() == 1
    state = torch.nn.Linear(1, 1).state_dict()
    assert negated(state)._metadata == state._metadata


def test_objects_are_copied_not_changed():
    batch = Batch(torch.ones(1), "first")
    found = negated([batch, batch])
    assert found[0] is found[1] and found[0] is not batch
    assert found[0].inputs.item() == -1 and found[0].name == "first" and batch.inputs.item() == 1


def test_an_object_without_tensors_is_itself():
    held = [Batch("none", "x"), print, Batch, 3, None, "text", (1, 2)]
    assert all(new is old for new, old in zip(negated(held), held, strict=True))


def test_shared_tensors_are_converted_once():
    one = torch.ones(1)
    first, second = negated([one, one])
    assert first is second


def test_an_object_that_holds_itself():
    batch = Batch(torch.ones(1), "first")
    batch.me = batch
    assert negated(batch).inputs.item() == -1
