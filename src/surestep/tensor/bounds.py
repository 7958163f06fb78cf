"""``SURESTEP_CHECK_BOUNDS=1``: an index that is out of range on the device is an error, at the next boundary, with the user's line.

An operation that takes indices then records their extremes too; the cut that computes them reads and judges them. Without the variable
nothing of this is there: neither the handlers nor the recorder know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from surestep import _compat, settings
from surestep.execute import transfer
from surestep.observe import frames
from surestep.observe.events import Cause
from surestep.tensor.xla_tensor import XlaTensor
from surestep.trace.recorder import LOCK, Recorder

ENABLED = settings.on("SURESTEP_CHECK_BOUNDS")  # as it is when the device is first used


class Range(NamedTuple):
    """An operand whose elements must be from ``low`` on and below ``high``; ``ignored`` is allowed besides."""

    index: Any
    low: int
    high: int
    ignored: int | None = None


class _Noted(NamedTuple):
    operation: str
    line: frames.Line | None
    low: int
    high: int
    extremes: XlaTensor


def _along(source: str = "self", index: str = "index", from_end: bool = False) -> Callable[[dict], Iterator[Range]]:
    """An index along the argument ``dim``, or the first dimension where there is no such argument."""

    def ranges(given: dict) -> Iterator[Range]:
        tensor = given[source]
        size = tensor.shape[given.get("dim", 0)] if tensor.ndim else 1
        yield Range(given[index], -size if from_end else 0, size)

    return ranges


def _each_dimension(given: dict) -> Iterator[Range]:
    position = 0
    for index in given["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            position += index.ndim
            continue
        if index is not None:
            size = given["self"].shape[position]
            yield Range(index, -size, size)
        position += 1


def _element(given: dict) -> Iterator[Range]:
    yield Range(given["index"], -given["self"].numel(), given["self"].numel())


def _class(given: dict) -> Iterator[Range]:
    scores = given["self"]
    yield Range(given["target"], 0, scores.shape[min(scores.ndim - 1, 1)], given.get("ignore_index"))


def _listed_class(given: dict) -> Iterator[Range]:
    yield Range(given["target"], -1, given["self"].shape[-1])


def _place(given: dict) -> Iterator[Range]:
    yield Range(given["indices"], 0, torch.Size(given["output_size"]).numel())


def _new_class(given: dict) -> Iterator[Range]:
    count = given.get("num_classes", -1)
    yield Range(given["self"], 0, count if count > 0 else 1 << 62)


_ALONG, _LOOKED_UP = _along(), _along("weight", "indices")
_RANGES: dict[str, Callable[[dict], Iterator[Range]]] = {
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _ALONG),
    **dict.fromkeys(("index_select", "index_add", "index_copy", "index_reduce"), _ALONG),
    **dict.fromkeys(("index", "index_put", "_index_put_impl"), _each_dimension),
    **dict.fromkeys(("take", "put"), _element),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _LOOKED_UP),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"), _class),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _place),
    "index_fill": _along(from_end=True),
    "embedding_renorm": _along("self", "indices"),
    "multilabel_margin_loss_forward": _listed_class,
    "one_hot": _new_class,
}
_noted: list[_Noted] = []


def checked(func: torch._ops.OpOverload, handler: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
    """The handler of an operation that takes indices, which notes their extremes first; any other is itself."""
    name = func._schema.name.removeprefix("aten::")
    ranges = _RANGES.get(name.removesuffix("_"))
    if ranges is None:
        return handler
    names = [argument.name for argument in func._schema.arguments]

    def handle(args: tuple, kwargs: dict) -> Any:
        result = handler(args, kwargs)  # first: PyTorch's own errors are about more than the indices
        line = frames.user_line()
        for index, low, high, ignored in ranges(dict(zip(names, args, strict=False)) | kwargs):
            # in a loop that is recorded once there is nothing yet to be judged at a boundary
            if isinstance(index, XlaTensor) and index.numel() and index._storage.trace.outside is None:
                index = index.detach() if ignored is None else torch.where(index == ignored, low, index)
                _noted.append(_Noted(str(func), line, low, high, torch.stack(index.aminmax())))  # type: ignore[arg-type] (ours, of ours)
        return result

    return handle


class CheckedRecorder(Recorder):
    """A recorder whose cuts judge the indices that were noted."""

    def cut(self, cause: Cause) -> bool:
        """As a recorder's; ``IndexError`` where an index in what was run is out of range."""
        ran = super().cut(cause)
        with LOCK:
            known = [noted for noted in _noted if noted.extremes._storage.array is not None]
            _noted[:] = [noted for noted in _noted if noted.extremes._storage.array is None]
        for noted in known:
            lowest, highest = transfer.to_host(noted.extremes._storage.array).tolist()
            if lowest < noted.low or highest >= noted.high:
                raise IndexError(
                    f"{noted.operation}: index {lowest if lowest < noted.low else highest} is out of range; it must be from {noted.low} "
                    f"to {noted.high - 1} ({noted.line}). Found by SURESTEP_CHECK_BOUNDS at a boundary: {cause.value}."
                )
        return ran


def register() -> torch.library.Library:
    """``one_hot``, which PyTorch would have taken apart before it arrives here. The library is to be kept."""
    one_hot = torch.ops.aten.one_hot.default
    handle = checked(one_hot, lambda args, kwargs: _compat.call_composite_kernel(one_hot, args, kwargs))
    library = torch.library.Library("aten", "IMPL")
    library.impl("one_hot", lambda *args, **kwargs: handle(args, kwargs), "AutogradXLA")
    return library
