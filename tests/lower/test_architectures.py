"""The operations that training the commonest architectures dispatches, each lowered, handled, or decomposed into what is.

architectures.json has what arrives at the device in training steps of tiny models, forward and backward, down to what PyTorch's
decompositions make of it: the image, text, speech and mixed models that people train most, by the names of their papers. PyTorch's
optimizers, one tensor at a time and as lists, are there by themselves, as on the CPU.
"""

import json
import pathlib

import pytest
from ways import overload, way

ARCHITECTURES = json.loads(pathlib.Path(__file__).with_name("architectures.json").read_text())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_its_training_stays_on_the_device(name):
    assert not [operation for operation in ARCHITECTURES[name] if way(overload(operation)) == "host"]
