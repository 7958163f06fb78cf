"""A storage: the memory that tensors share. It holds its current value, and who writes replaces the value.

The value is in one of these states:

* an array on the device (``array``), which this storage alone holds, so that a program may be given its memory;
* pending: an SSA value of the trace with this ``serial`` (``array`` is None);
* both: the array was read in the trace with this ``serial``, where it is a leaf;
* neither: never written; its elements read as zeros;
* lost: its array was given to a program that failed while it ran.
"""

from __future__ import annotations

from typing import Any

from surestep.trace.layout import Layout
from surestep.trace.operands import Ref, ref

NOWHERE = ref(0)


class Storage:
    """Memory on a device, by its value. Tensors that alias have the same storage; how each lies over it is the tensor's own layout."""

    # What is seldom other than so is the class's, as a storage is made for each operation that is recorded.
    exported = False  # somebody outside holds the array: never donate it
    hooks: Any = None  # gradient hooks of the parameter that was moved here, until they are put back
    lost: str | None = None  # what happened to the value
    sharding: Any = None  # under SPMD: how somebody said that the value lies over the devices
    mark: Any = None  # of a parameter: where that was said, if no program should gather it (trace/marks.py)
    uniform: bool | None = None  # whether all elements are equal (an optimizer's counts of steps); None: not known

    def __init__(self, trace_of: Any, layout: Layout, array: Any = None, serial: int = 0, index: Ref = NOWHERE):
        self.trace = trace_of  # the device's Recorder
        self.born = trace_of.serial  # the trace in which it was made
        self.layout = layout  # dense: the value's shape, and where each element is in memory
        self.array = array
        self.serial = serial  # of the trace in which `ref` counts; 0: none
        self.ref = index

    @property
    def unwritten(self) -> bool:
        """Whether nothing was ever written here, so that how its elements lie in memory is still free."""
        return self.array is None and self.serial == 0 and self.lost is None

    def lie_as(self, layout: Layout) -> None:
        """The value has another shape, or lies otherwise in memory; what was said of other dimensions counts no more."""
        if self.sharding is not None and layout.sizes != self.layout.sizes:
            self.sharding = self.mark = None
        self.layout = layout
