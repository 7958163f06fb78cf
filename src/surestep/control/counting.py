"""Numbers on a device that are never written: 0, 1, 2, ..., one array each, as inputs of programs that must not know them."""

from __future__ import annotations

import weakref

import torch

from surestep.execute import transfer
from surestep.trace.layout import layout
from surestep.trace.recorder import Recorder
from surestep.trace.storage import Storage

_kept: weakref.WeakKeyDictionary[Recorder, list[Storage]] = weakref.WeakKeyDictionary()


def places(recorder: Recorder, count: int) -> list[Storage]:
    """The numbers below ``count``, 32-bit and unsigned."""
    known = _kept.setdefault(recorder, [])
    for number in range(len(known), count):
        array = transfer.to_device(torch.tensor(number, dtype=torch.uint32), recorder.device)
        known.append(Storage(recorder, layout((), (), 0, torch.uint32), array))
    return known[:count]


def is_place(storage: Storage) -> bool:
    """Whether it is one of these numbers."""
    return any(storage is each for each in _kept.get(storage.trace, ()))
